#!/usr/bin/env python3
"""Writes the seeds of tokenizer_fuzz: texts for each pre-tokenizer, vocabularies and GGUF files.

    fuzz/make_tokenizer_corpus.py [FOLDER]      by default fuzz/corpus/tokenizer beside this script
"""
import pathlib
import sys

from make_gguf_corpus import ARRAY, BOOL, FLOAT32, INT32, STRING, UINT32, gguf

ENCODERS = 40  # at least as many as there are pre-tokenizers, and SentencePiece
TEXTS = [
    "I'm  12345 tons!!\n\n x",
    "HelloWorld's 1234567 中文ひらがな한국어",
    "e\u0301\u0323 \u212b \u1112\u1161\u11ab \U0001f600 \u2581\u00a0\u3000",
    b"ab\xff\xfe\xe4\xb8 \xed\xa0\x80 \xf4\x90\x80\x80",
    "xxxxxxxxxxxxxxxx          \r\n\t\t<sentinel:12>IMGIMGABCZ",
]


def record(kind, score, token):
    """A token of a vocabulary; kind is its type's number."""
    return bytes([kind - 1, score & 0xff]) + token.encode()


def vocabulary_keys(model, tokens, types, **more):
    keys = [
        ("tokenizer.ggml.model", STRING, model),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.token_type", ARRAY, (INT32, types)),
        ("tokenizer.ggml.bos_token_id", UINT32, 0),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
    ]
    if "scores" in more:
        keys.append(("tokenizer.ggml.scores", ARRAY, (FLOAT32, more["scores"])))
    if "merges" in more:
        keys.append(("tokenizer.ggml.merges", ARRAY, (STRING, more["merges"])))
    if "pre" in more:
        keys.append(("tokenizer.ggml.pre", STRING, more["pre"]))
    return keys


def main():
    folder = pathlib.Path(__file__).resolve().parent / "corpus" / "tokenizer"
    if len(sys.argv) > 1:
        folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    seeds = {}
    for i in range(ENCODERS):
        sample = TEXTS[i % len(TEXTS)]
        raw = sample if isinstance(sample, bytes) else sample.encode()
        seeds[f"text{i}"] = bytes([i]) + raw
    words = [record(2, 0, "<unk>"), record(3, 0, "<s>"), record(6, 0, "<0x0A>"), record(4, 0, "<t>"),
             record(1, 3, "a"), record(1, 2, "b"), record(1, 1, "ab"), record(1, 0, "Ġ"),
             record(5, 0, "▁"), b"ma b"]
    for i in (0, 1, 8, 35, 36, 37, 38):
        seeds[f"vocabulary{i}"] = b"\xfe".join([bytes([0x80 + i]) + "ab <t>\nba".encode()] + words)
    tokens = ["<s>", "a", "b", "ab", "Ġ", "<|im_end|>", "<tag>"]
    types = [3, 1, 1, 1, 1, 3, 4]
    for pre in ("default", "llama-bpe", "qwen2"):
        seeds[f"gguf-{pre}"] = b"\xc0" + gguf(
            vocabulary_keys("gpt2", tokens, types, merges=["a b"], pre=pre))
    seeds["gguf-gemma4"] = b"\xc0" + gguf(
        vocabulary_keys("gemma4", ["<s>", "a", "b", "▁a", "▁", "<0x0A>"], [3, 1, 1, 1, 1, 6],
                        merges=["▁ a"]))
    seeds["gguf-llama"] = b"\xc0" + gguf(
        vocabulary_keys("llama", ["<s>", "a", "b", "▁a", "▁", "<0x0A>"], [3, 1, 1, 1, 1, 6],
                        scores=[0.0, -1.0, -2.0, -3.0, -4.0, 0.0])
        + [("general.name", STRING, "phi-3")])
    for name, raw in seeds.items():
        (folder / name).write_bytes(raw)


if __name__ == "__main__":
    main()
