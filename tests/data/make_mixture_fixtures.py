#!/usr/bin/env python3
"""Makes the small random mixtures of experts and hybrid models in tests/data/models.

    make_mixture_fixtures.py TARGET       writes one directory per architecture
    make_mixture_fixtures.py --check DIR  compares with golden.safetensors (or golden.st) of DIR

The logits are those of this file's own implementation: float64 and numpy, one token at a time, as
the architectures' descriptions have it. On models by Transformers 5.17 (float32) of every family
here but Mixtral, --check finds differences below 1e-5 of the logits' standard deviation.
"""
import json
import pathlib
import struct
import sys

import numpy as np

DTYPES = {"BF16": np.uint16, "F32": np.float32, "I32": np.int32, "U8": np.uint8}


def read(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = widen(values) if entry["dtype"] == "BF16" else values
    return tensors


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def narrow(values):
    """The nearest BF16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def write(path, tensors):
    """Floating-point arrays become BF16, except float32."""
    header, body = {}, b""
    for name, values in tensors.items():
        if values.dtype == np.float64:
            values = narrow(values)
        dtype = next(key for key, kind in DTYPES.items() if kind == values.dtype)
        data = values.tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


# --- The models ----------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms(x, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


MXFP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def unpack_mxfp4(blocks, scales):
    codes = np.stack([blocks & 15, blocks >> 4], -1)
    values = MXFP4[codes] * 2.0 ** (scales[..., None, None].astype(np.float64) - 127)
    return values.reshape(*scales.shape[:-1], -1)


class Model:
    def __init__(self, config, tensors):
        self.config, self.tensors = config, tensors
        self.kind = config["model_type"].removesuffix("_text")
        self.hybrid = self.kind in ("qwen3_next", "qwen3_5", "qwen3_5_moe")
        self.epsilon = config["rms_norm_eps"]
        self.experts = config.get("num_experts") or config.get("num_local_experts") or 0
        self.kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
        if self.hybrid and "layer_types" not in config:
            self.kinds = [
                "full_attention" if (l + 1) % config["full_attention_interval"] == 0 else "linear_attention"
                for l in range(config["num_hidden_layers"])
            ]

    def norm(self, x, name):
        return rms(x, self.epsilon) * (self.tensors[name] + (1 if self.hybrid else 0))

    def linear(self, x, name):
        y = x @ self.tensors[name + ".weight"].T
        return y + self.tensors[name + ".bias"] if name + ".bias" in self.tensors else y

    def rope(self):
        config = self.config
        parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
        base = parameters.get("rope_theta", config.get("rope_theta"))
        share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1))
        dims = int(self.head_dim() * share)
        pairs = np.arange(dims // 2)
        frequencies = base ** (-2 * pairs / dims)
        if parameters.get("rope_type") != "yarn":
            return frequencies, 1
        original = parameters["original_max_position_embeddings"]
        turns = lambda n: dims * np.log(original / (n * 2 * np.pi)) / (2 * np.log(base))
        begin, end = turns(parameters["beta_fast"]), turns(parameters["beta_slow"])
        if parameters.get("truncate", True):
            begin, end = np.floor(begin), np.ceil(end)
        begin, end = max(begin, 0), min(end, dims - 1)
        ramp = np.clip((pairs - begin) / max(end - begin, 0.001), 0, 1)
        factor = parameters["factor"]
        return frequencies * (1 - ramp + ramp / factor), 0.1 * np.log(factor) + 1

    def head_dim(self):
        return self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]

    def turn(self, x):
        """Rotates x [positions, heads, head_dim]."""
        frequencies, magnitude = self.rope()
        n = len(frequencies)
        angles = np.arange(len(x))[:, None, None] * frequencies
        cosine, sine = np.cos(angles) * magnitude, np.sin(angles) * magnitude
        a, b = x[..., :n], x[..., n : 2 * n]
        return np.concatenate([a * cosine - b * sine, a * sine + b * cosine, x[..., 2 * n :]], -1)

    def attention(self, x, prefix, kind):
        n, dim = len(x), self.head_dim()
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q = self.linear(x, prefix + "q_proj")
        gate = None
        if self.hybrid:
            q, gate = np.split(q.reshape(n, heads, 2 * dim), 2, -1)
        q = q.reshape(n, heads, dim)
        k = self.linear(x, prefix + "k_proj").reshape(n, kv_heads, dim)
        v = self.linear(x, prefix + "v_proj").reshape(n, kv_heads, dim)
        if prefix + "q_norm.weight" in self.tensors:
            q, k = self.norm(q, prefix + "q_norm.weight"), self.norm(k, prefix + "k_norm.weight")
        q, k = self.turn(q), self.turn(k)
        k, v = (np.repeat(t, heads // kv_heads, 1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        distance = np.arange(n)[:, None] - np.arange(n)[None, :]
        window = self.config["sliding_window"] if kind == "sliding_attention" else n
        scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
        if prefix + "sinks" in self.tensors:
            sinks = np.broadcast_to(self.tensors[prefix + "sinks"][:, None, None], (heads, n, 1))
            scores = np.concatenate([scores, sinks], -1)
        y = np.einsum("hqk,khd->qhd", softmax(scores)[..., :n], v)
        if gate is not None:
            y = y * sigmoid(gate)
        return self.linear(y.reshape(n, -1), prefix + "o_proj")

    def delta_net(self, x, prefix):
        c, t, n = self.config, self.tensors, len(x)
        heads, values = c["linear_num_key_heads"], c["linear_num_value_heads"]
        dk, dv, share = c["linear_key_head_dim"], c["linear_value_head_dim"], values // heads
        if prefix + "in_proj_qkvz.weight" in t:
            fused = self.linear(x, prefix + "in_proj_qkvz").reshape(n, heads, -1)
            q, k, v, z = np.split(fused, np.cumsum([dk, dk, share * dv]), -1)
            b, a = np.split(self.linear(x, prefix + "in_proj_ba").reshape(n, heads, -1), 2, -1)
            mixed = np.concatenate([p.reshape(n, -1) for p in (q, k, v)], -1)
        else:
            mixed, z = self.linear(x, prefix + "in_proj_qkv"), self.linear(x, prefix + "in_proj_z")
            b, a = self.linear(x, prefix + "in_proj_b"), self.linear(x, prefix + "in_proj_a")
        z, b, a = z.reshape(n, values, dv), b.reshape(n, values), a.reshape(n, values)
        weight = t[prefix + "conv1d.weight"].reshape(mixed.shape[1], -1)
        padded = np.concatenate([np.zeros((weight.shape[1] - 1, mixed.shape[1])), mixed])
        mixed = silu(sum(padded[j : j + n] * weight[:, j] for j in range(weight.shape[1])))
        q, k, v = np.split(mixed, [heads * dk, 2 * heads * dk], -1)
        unit = lambda p: p / np.sqrt((p * p).sum(-1, keepdims=True) + 1e-6)
        q, k = (np.repeat(unit(p.reshape(n, heads, dk)), share, 1) for p in (q, k))
        v = v.reshape(n, values, dv)
        decay = np.exp(-np.exp(t[prefix + "A_log"]) * np.log1p(np.exp(a + t[prefix + "dt_bias"])))
        state, y = np.zeros((values, dk, dv)), np.zeros((n, values, dv))
        for i in range(n):
            state *= decay[i][:, None, None]
            held = np.einsum("hkv,hk->hv", state, k[i])
            state += np.einsum("hk,hv->hkv", k[i], (v[i] - held) * sigmoid(b[i])[:, None])
            y[i] = np.einsum("hkv,hk->hv", state, q[i]) / np.sqrt(dk)
        y = rms(y, self.epsilon) * t[prefix + "norm.weight"] * silu(z)
        return self.linear(y.reshape(n, -1), prefix + "out_proj")

    def expert(self, x, prefix, e):
        t = self.tensors
        if self.kind == "gpt_oss":
            stacks = []
            for name in ("gate_up_proj", "down_proj"):
                full = f"{prefix}experts.{name}"
                if full in t:
                    matrix = t[full][e]
                else:
                    matrix = unpack_mxfp4(t[full + "_blocks"][e], t[full + "_scales"][e]).T
                stacks.append((matrix, t[full + "_bias"][e]))
            both = x @ stacks[0][0] + stacks[0][1]
            gate, up = np.minimum(both[..., ::2], 7), np.clip(both[..., 1::2], -7, 7)
            return (gate * sigmoid(1.702 * gate) * (up + 1)) @ stacks[1][0] + stacks[1][1]
        if prefix + "experts.gate_up_proj" in t:
            gate, up = np.split(t[prefix + "experts.gate_up_proj"][e] @ x, 2)
            return t[prefix + "experts.down_proj"][e] @ (silu(gate) * up)
        names = ("w1", "w3", "w2") if self.kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        gate, up, down = (t[f"{prefix}experts.{e}.{name}.weight"] for name in names)
        return down @ (silu(gate @ x) * (up @ x))

    def mlp(self, x, prefix):
        gate, up = self.linear(x, prefix + "gate_proj"), self.linear(x, prefix + "up_proj")
        return self.linear(silu(gate) * up, prefix + "down_proj")

    def mixture(self, x, prefix):
        router = self.linear(x, prefix + ("router" if self.kind == "gpt_oss" else "gate"))
        y = np.zeros_like(x)
        for i, row in enumerate(x):
            chosen = np.argsort(-router[i], kind="stable")[: self.config["num_experts_per_tok"]]
            weights = softmax(router[i])[chosen]
            # Only Qwen3-MoE has a choice, and not to renormalize is its default.
            if self.kind != "qwen3_moe" or self.config.get("norm_topk_prob", False):
                weights = weights / weights.sum()
            for e, weight in zip(chosen, weights):
                y[i] += weight * self.expert(row, prefix, e)
        if prefix + "shared_expert_gate.weight" in self.tensors:
            y += sigmoid(self.linear(x, prefix + "shared_expert_gate")) * self.mlp(x, prefix + "shared_expert.")
        return y

    def is_sparse(self, layer):
        step = self.config.get("decoder_sparse_step", 1)
        return self.experts and layer not in self.config.get("mlp_only_layers", []) and (layer + 1) % step == 0

    def logits(self, tokens):
        x = self.tensors["model.embed_tokens.weight"][tokens].astype(np.float64)
        for layer, kind in enumerate(self.kinds):
            prefix = f"model.layers.{layer}."
            normed = self.norm(x, prefix + "input_layernorm.weight")
            if kind == "linear_attention":
                x = x + self.delta_net(normed, prefix + "linear_attn.")
            else:
                x = x + self.attention(normed, prefix + "self_attn.", kind)
            normed = self.norm(x, prefix + "post_attention_layernorm.weight")
            block = prefix + ("block_sparse_moe." if self.kind == "mixtral" else "mlp.")
            x = x + (self.mixture if self.is_sparse(layer) else self.mlp)(normed, block)
        return self.linear(self.norm(x, "model.norm.weight"), "lm_head")


# --- The fixtures --------------------------------------------------------------------------------

COMMON = {
    "hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 40, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
    "num_experts_per_tok": 2, "num_hidden_layers": 2, "hidden_act": "silu", "tie_word_embeddings": False,
}
HYBRID = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_value_head_dim": 24, "num_hidden_layers": 2,
}
NEW_ROPE = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
PARTIAL_ROPE = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25}
YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 4096, "truncate": False,
}

# Both styles of configuration occur among them, the older one with numbers of its own.
CONFIGS = {
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "rope_theta": 1e6, "sliding_window": None},
    "qwen3-moe": {
        "model_type": "qwen3_moe", "num_experts": 5, "moe_intermediate_size": 32, "norm_topk_prob": True,
        "mlp_only_layers": [], "decoder_sparse_step": 1, **NEW_ROPE,
    },
    "qwen3-moe-mixed": {
        "model_type": "qwen3_moe", "num_local_experts": 3, "moe_intermediate_size": 24, "norm_topk_prob": False,
        "mlp_only_layers": [3], "num_hidden_layers": 4, "decoder_sparse_step": 2, "rope_theta": 10000.0,
        "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
    },
    "gpt-oss": {
        "model_type": "gpt_oss", "num_local_experts": 4, "rope_parameters": {"rope_theta": 150000.0, **YARN},
        "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], "rms_norm_eps": 1e-5,
        "intermediate_size": 32,
    },
    "gpt-oss-mxfp4": {
        "model_type": "gpt_oss", "num_local_experts": 4, "rope_theta": 150000.0, "rope_scaling": YARN,
        "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], "rms_norm_eps": 1e-5,
        "intermediate_size": 32, "swiglu_limit": 7.0,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    },
    "qwen3-next": {
        "model_type": "qwen3_next", "num_experts": 4, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 24, "norm_topk_prob": True, "full_attention_interval": 2,
        "rope_theta": 10000.0, "partial_rotary_factor": 0.25, **HYBRID,
    },
    "qwen3.5": {
        "model_type": "qwen3_5_text", "rope_parameters": PARTIAL_ROPE,
        "layer_types": ["linear_attention", "full_attention"], **HYBRID,
    },
    "qwen3.5-moe": {
        "model_type": "qwen3_5_moe_text", "num_experts": 4, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 24, "rope_parameters": PARTIAL_ROPE,
        "layer_types": ["linear_attention", "full_attention"], **HYBRID,
    },
}


class Builder:
    def __init__(self, name, config):
        self.config, self.tensors = config, {}
        self.random = np.random.default_rng(sum(name.encode()))
        self.hybrid = "linear_num_key_heads" in config

    def add(self, name, *shape, spread=None, mean=0):
        """Random values that BF16 holds exactly."""
        spread = spread or 1.3 / np.sqrt(shape[-1])
        self.tensors[name] = widen(narrow(self.random.normal(mean, spread, shape)))

    def norm(self, name, size, mean=None):
        self.add(name, size, spread=0.1, mean=(0 if self.hybrid else 1) if mean is None else mean)

    def mlp(self, prefix, hidden):
        self.add(prefix + "gate_proj.weight", hidden, self.config["hidden_size"])
        self.add(prefix + "up_proj.weight", hidden, self.config["hidden_size"])
        self.add(prefix + "down_proj.weight", self.config["hidden_size"], hidden)

    def attention(self, prefix):
        c = self.config
        hidden, dim = c["hidden_size"], c["head_dim"]
        q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
        oss = c["model_type"] == "gpt_oss"
        for name, outputs, inputs in (
            ("q_proj", q * (2 if self.hybrid else 1), hidden), ("k_proj", kv, hidden), ("v_proj", kv, hidden),
            ("o_proj", hidden, q),
        ):
            self.add(f"{prefix}{name}.weight", outputs, inputs)
            if oss:
                self.add(f"{prefix}{name}.bias", outputs, spread=0.3)
        if oss:
            self.add(prefix + "sinks", c["num_attention_heads"], spread=1)
        elif c["model_type"] != "mixtral":
            self.norm(prefix + "q_norm.weight", dim)
            self.norm(prefix + "k_norm.weight", dim)

    def delta_net(self, prefix):
        c, hidden = self.config, self.config["hidden_size"]
        heads = c["linear_num_value_heads"]
        keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
        values = heads * c["linear_value_head_dim"]
        if c["model_type"] == "qwen3_next":
            self.add(prefix + "in_proj_qkvz.weight", 2 * keys + 2 * values, hidden)
            self.add(prefix + "in_proj_ba.weight", 2 * heads, hidden)
        else:
            self.add(prefix + "in_proj_qkv.weight", 2 * keys + values, hidden)
            self.add(prefix + "in_proj_z.weight", values, hidden)
            self.add(prefix + "in_proj_b.weight", heads, hidden)
            self.add(prefix + "in_proj_a.weight", heads, hidden)
        self.add(prefix + "conv1d.weight", 2 * keys + values, 1, c["linear_conv_kernel_dim"], spread=0.6)
        self.add(prefix + "A_log", heads, spread=1)
        self.add(prefix + "dt_bias", heads, spread=1)
        self.norm(prefix + "norm.weight", c["linear_value_head_dim"], mean=1)
        self.add(prefix + "out_proj.weight", hidden, values)

    def gpt_oss_experts(self, prefix):
        c = self.config
        experts, hidden, inner = c["num_local_experts"], c["hidden_size"], c["intermediate_size"]
        for name, outputs, inputs in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            full = f"{prefix}experts.{name}"
            if "quantization_config" in c:
                shape = (experts, outputs, inputs // 32)
                self.tensors[full + "_blocks"] = self.random.integers(0, 256, (*shape, 16), dtype=np.uint8)
                self.tensors[full + "_scales"] = self.random.integers(121, 125, shape, dtype=np.uint8)
            else:
                self.add(full, experts, inputs, outputs, spread=2 / np.sqrt(inputs))
            self.add(full + "_bias", experts, outputs, spread=0.3)
        self.add(prefix + "router.weight", experts, hidden)
        self.add(prefix + "router.bias", experts, spread=0.3)

    def mixture(self, prefix):
        c = self.config
        if c["model_type"] == "gpt_oss":
            return self.gpt_oss_experts(prefix)
        experts, hidden = c.get("num_experts") or c["num_local_experts"], c["hidden_size"]
        inner = c.get("moe_intermediate_size") or c["intermediate_size"]
        self.add(prefix + "gate.weight", experts, hidden)
        if c["model_type"] == "qwen3_5_moe_text":
            self.add(prefix + "experts.gate_up_proj", experts, 2 * inner, hidden)
            self.add(prefix + "experts.down_proj", experts, hidden, inner)
        for e in range(experts):
            if c["model_type"] == "mixtral":
                self.add(f"{prefix}experts.{e}.w1.weight", inner, hidden)
                self.add(f"{prefix}experts.{e}.w2.weight", hidden, inner)
                self.add(f"{prefix}experts.{e}.w3.weight", inner, hidden)
            elif c["model_type"] != "qwen3_5_moe_text":
                self.mlp(f"{prefix}experts.{e}.", inner)
        if "shared_expert_intermediate_size" in c:
            self.mlp(prefix + "shared_expert.", c["shared_expert_intermediate_size"])
            self.add(prefix + "shared_expert_gate.weight", 1, hidden)

    def build(self):
        c, hidden = self.config, self.config["hidden_size"]
        model = Model(c, self.tensors)
        self.add("model.embed_tokens.weight", c["vocab_size"], hidden, spread=1)
        for layer, kind in enumerate(model.kinds):
            prefix = f"model.layers.{layer}."
            self.norm(prefix + "input_layernorm.weight", hidden)
            self.norm(prefix + "post_attention_layernorm.weight", hidden)
            if kind == "linear_attention":
                self.delta_net(prefix + "linear_attn.")
            else:
                self.attention(prefix + "self_attn.")
            block = prefix + ("block_sparse_moe." if c["model_type"] == "mixtral" else "mlp.")
            if model.is_sparse(layer):
                self.mixture(block)
            else:
                self.mlp(block, c["intermediate_size"])
        self.norm("model.norm.weight", hidden)
        self.add("lm_head.weight", c["vocab_size"], hidden)
        return model


def make(target):
    for name, differences in CONFIGS.items():
        config = {**COMMON, **differences}
        builder = Builder(name, config)
        model = builder.build()
        tokens = builder.random.integers(0, config["vocab_size"], 23, dtype=np.int32)
        folder = target / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        write(folder / "model.safetensors", builder.tensors)
        write(folder / "golden.st", {"tokens": tokens, "logits": model.logits(tokens).astype(np.float32)})


def check(folder):
    model = Model(json.loads((folder / "config.json").read_text()), read(folder / "model.safetensors"))
    golden = next(path for path in (folder / "golden.safetensors", folder / "golden.st") if path.exists())
    expected = read(golden)
    tokens, logits = expected["tokens"], expected["logits"]
    if tokens.ndim == 2:
        tokens, logits = tokens[0], logits[0]
    difference = np.abs(model.logits(tokens) - logits).max()
    print(f"{folder}: {difference / logits.std():.1e} of the standard deviation")


if sys.argv[1] == "--check":
    for argument in sys.argv[2:]:
        check(pathlib.Path(argument))
else:
    make(pathlib.Path(sys.argv[1]))
