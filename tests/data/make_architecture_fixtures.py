#!/usr/bin/env python3
"""Makes small random models of the dense architectures, with logits by Transformers.

    make_architecture_fixtures.py TARGET

Needs torch and transformers (5.17). For each model TARGET/NAME gets config.json, model.safetensors
(BF16) and golden.st: `tokens` [positions] and `logits` [positions, vocabulary] in float32. Where
golden.st has logits.VARIANT too, variants.json says which keys of config.json are other ones there.
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

POSITIONS = 40
COMMON = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, vocab_size=64, max_position_embeddings=128,
    bos_token_id=0, eos_token_id=1, pad_token_id=2,
)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=8.0, beta_slow=1.0,
            original_max_position_embeddings=32)
# Phi-3's own head: hidden / heads = 8 elements, of which 6 turn.
LONG = dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, factor=4.0,
            short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 2.5, 7.0],
            original_max_position_embeddings=32)

# Name, configuration, what differs from COMMON, variants of rope_parameters.
MODELS = [
    ("llama", "Llama", dict(rope_parameters=LLAMA3), {
        "linear": LINEAR,
        "yarn": YARN,
        "yarn-magnitude": YARN | dict(attention_factor=1.25, truncate=False),
    }),
    ("mistral", "Mistral", dict(sliding_window=8), {}),
    ("qwen2", "Qwen2", dict(tie_word_embeddings=True, use_sliding_window=True, sliding_window=8,
                            max_window_layers=2), {}),
    ("qwen3", "Qwen3", dict(tie_word_embeddings=True), {}),
    ("gemma2", "Gemma2", dict(sliding_window=8, query_pre_attn_scalar=24), {}),
    ("gemma3", "Gemma3Text", dict(sliding_window=8, query_pre_attn_scalar=24, num_hidden_layers=6,
                                  layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2,
                                  sliding_window_pattern=3), {}),
    ("smollm3", "SmolLM3", dict(tie_word_embeddings=True), {}),
    ("phi3", "Phi3", dict(head_dim=8, sliding_window=24, rope_parameters=LONG,
                          original_max_position_embeddings=32), {
        "short": LONG | dict(original_max_position_embeddings=64),
    }),
]


def randomize(model):
    """Weights under which every part of the model matters for the logits."""
    generator = torch.Generator().manual_seed(7)
    for name, weights in model.named_parameters():
        values = torch.randn(weights.shape, generator=generator)
        if weights.dim() == 2 and "embed" not in name:
            values *= 1.5 / weights.shape[1] ** 0.5
        elif "norm" in name:
            values = values * 0.3 + (0 if "gemma" in model.config.model_type else 1)
        elif weights.dim() == 1:
            values *= 0.5
        weights.data = values.to(torch.bfloat16).to(torch.float32)


def logits(model_class, config, state, tokens):
    model = model_class(config)
    model.load_state_dict(state)
    with torch.no_grad():
        return model.float().eval()(input_ids=tokens[None], use_cache=False).logits[0].contiguous()


def main():
    target = pathlib.Path(sys.argv[1])
    torch.use_deterministic_algorithms(True)
    tokens = torch.randint(3, COMMON["vocab_size"], (POSITIONS,),
                           generator=torch.Generator().manual_seed(3))
    for name, kind, special, variants in MODELS:
        def configuration(other):
            arguments = {**COMMON, **special, **other, "attn_implementation": "eager"}
            return getattr(transformers, kind.removesuffix("Text") + ("TextConfig" if kind.endswith("Text") else "Config"))(**arguments)

        model_class = getattr(transformers, kind.removesuffix("Text") + "ForCausalLM")
        model = model_class(configuration({}))
        randomize(model)
        model.tie_weights()
        state = model.state_dict()
        golden = {"tokens": tokens.to(torch.int32),
                  "logits": logits(model_class, configuration({}), state, tokens)}
        changes = {}
        for variant, rope in variants.items():
            changes[variant] = {"rope_parameters": rope}
            if "original_max_position_embeddings" in special:
                changes[variant]["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
            golden[f"logits.{variant}"] = logits(model_class, configuration(changes[variant]), state, tokens)
        folder = target / name
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        save_file(golden, folder / "golden.st")
        if changes:
            (folder / "variants.json").write_text(json.dumps(changes, indent=1, sort_keys=True) + "\n")
        print(name, transformers.__version__, {k: f"{v.float().std():.3f}" for k, v in golden.items()})


if __name__ == "__main__":
    main()
