#!/usr/bin/env python3
"""Cuts small models in EXL3 and MLX form out of larger ones, with logits computed here.

    pip install numpy
    cut_packed_model_fixtures.py exl3 TARGET SOURCE...
    cut_packed_model_fixtures.py mlx TARGET SOURCE

Layer i of the result is the first layer of the i-th SOURCE directory (MLX: the first two layers of the one), with
fewer heads and a narrower MLP, and the first 128 rows of embedding and head: pieces of the packed tensors as they
are. No other program has run such a model, so golden.st gets logits that this script computes in double
precision from weights that it decodes itself, after the formats' descriptions in docs/formats.md.
"""
import json
import pathlib
import struct
import sys

import numpy as np

VOCABULARY = 128
HEADS, HEAD_DIM, MLP = 2, 64, {"exl3": 256, "mlx": 128}
TOKENS = [(7 * i * i + 3 * i + 1) % VOCABULARY for i in range(24)]
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I16": np.int16, "I32": np.int32,
          "U32": np.uint32}


def read(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: (entry["dtype"], np.frombuffer(body[slice(*entry["data_offsets"])], DTYPES[entry["dtype"]])
                   .reshape(entry["shape"])) for name, entry in header.items()}


def write(path, tensors):
    header, body = {}, b""
    for name, (dtype, array) in sorted(tensors.items(), key=lambda item: -item[1][1].itemsize):
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def plain(tensor):
    dtype, array = tensor
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


# --- EXL3 ----------------------------------------------------------------------------------------


def exl3_cut(tensors, module, rows, cols):
    parts = {}
    for name, (dtype, array) in tensors.items():
        if not name.startswith(module + "."):
            continue
        suffix = name[len(module) :]
        cut = {".trellis": lambda a: a[: cols // 16, : rows // 16], ".suh": lambda a: a[:cols],
               ".svh": lambda a: a[:rows]}.get(suffix, lambda a: a)
        parts[suffix] = (dtype, cut(array))
    return parts


def exl3_states(words, steps):
    """The 16-bit state that ends with each of a tile's 256 steps; words U16 [16·K], steps bits each."""
    pairs = words.reshape(-1, 2).astype(np.uint32)
    stream = pairs[:, 0] | pairs[:, 1] << 16
    bits = (stream[:, None] >> np.arange(31, -1, -1, dtype=np.uint32) & 1).reshape(-1)
    ends = np.cumsum(steps)
    places = (ends[:, None] - 16 + np.arange(16)) % bits.size
    return bits[places] @ (1 << np.arange(15, -1, -1))


def exl3_weights(states, codebook):
    if codebook == "mul1":
        product = (states.astype(np.uint64) * 0x83DCD12D & 0xFFFFFFFF).astype(np.uint32)
        total = sum(product >> shift & 255 for shift in (0, 8, 16, 24))
        factor, offset = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16).astype(np.float64)
        # Exact in double, then rounded once.
        return ((1024.0 + total) * factor + offset).astype(np.float16)
    factor, addend = {"mcg": (0xCBAC1FED, 0), "3inst": (89226354, 64248484)}[codebook]
    x = (states.astype(np.uint64) * factor + addend & 0xFFFFFFFF).astype(np.uint32)
    x = (x & 0x8FFF8FFF) ^ 0x3B603B60
    low, high = ((x >> shift & 0xFFFF).astype(np.uint16).view(np.float16) for shift in (0, 16))
    return low + high


def rotate(matrix):
    """Each run of 128 rows times the Hadamard matrix / √128."""
    h = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(128)] for i in range(128)]) / np.sqrt(128)
    return np.concatenate([h @ matrix[i : i + 128] for i in range(0, len(matrix), 128)])


def exl3_decode(parts):
    trellis = parts[".trellis"][1]
    width = trellis.shape[2]
    k, half = width // 16, width % 16 == 8
    steps = [k + (half and t % 2) for t in range(256)]
    codebook = "mul1" if ".mul1" in parts else "mcg" if ".mcg" in parts else "3inst"
    t = np.arange(256)
    lane, i = t // 8, t % 8
    row = 2 * (lane % 4) + np.array([0, 1, 8, 9])[i % 4]
    column = lane // 4 + np.where(i < 4, 0, 8)
    inner = np.zeros((trellis.shape[0] * 16, trellis.shape[1] * 16))
    for a in range(trellis.shape[0]):
        for b in range(trellis.shape[1]):
            states = exl3_states(trellis[a, b].view(np.uint16), steps)
            inner[16 * a + row, 16 * b + column] = exl3_weights(states, codebook)
    suh, svh = plain(parts[".suh"]), plain(parts[".svh"])
    return (rotate(rotate(inner).T) * svh[:, None] * suh[None, :])  # [outputs, inputs]


# --- MLX -----------------------------------------------------------------------------------------


def mlx_bits(tensors, module, group):
    words, groups = tensors[module + ".weight"][1].shape[1], tensors[module + ".scales"][1].shape[1]
    return words * 32 // (groups * group)


def mlx_cut(tensors, module, rows, cols, group=64):
    bits = mlx_bits(tensors, module, group)
    take = {".weight": cols * bits // 32, ".scales": cols // group, ".biases": cols // group}
    return {suffix: (tensors[module + suffix][0], tensors[module + suffix][1][:rows, :count])
            for suffix, count in take.items()}


def mlx_decode(parts, group=64):
    words = parts[".weight"][1]
    bits = mlx_bits({"m" + suffix: part for suffix, part in parts.items()}, "m", group)
    stream = (words[:, :, None] >> np.arange(32, dtype=np.uint32) & 1).reshape(len(words), -1, bits)
    codes = stream @ (1 << np.arange(bits))
    scales, biases = (np.repeat(plain(parts[part]), group, axis=1) for part in (".scales", ".biases"))
    return scales * codes + biases


# --- The model -----------------------------------------------------------------------------------


def rms_norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rope(x, base):
    """x [positions, heads, head_dim]; pairs lie half a head apart."""
    half = HEAD_DIM // 2
    angle = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def forward(config, weights, norms, layers):
    epsilon, base = config["rms_norm_eps"], config["rope_theta"]
    kv_heads = config["num_key_value_heads"]
    x = weights["model.embed_tokens"][TOKENS]
    causal = np.triu(np.full((len(TOKENS), len(TOKENS)), -np.inf), 1)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        y = rms_norm(x, norms[f"{name}.input_layernorm"], epsilon)
        q, k, v = ((y @ weights[f"{name}.self_attn.{p}_proj"].T).reshape(len(y), -1, HEAD_DIM) for p in "qkv")
        q, k = rope(q, base), rope(k, base)
        k, v = (np.repeat(t, HEADS // kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("phd,shd->hps", q, k) / np.sqrt(HEAD_DIM) + causal
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hps,shd->phd", scores / scores.sum(-1, keepdims=True), v)
        x = x + mixed.reshape(len(y), -1) @ weights[f"{name}.self_attn.o_proj"].T
        y = rms_norm(x, norms[f"{name}.post_attention_layernorm"], epsilon)
        gate, up = (y @ weights[f"{name}.mlp.{p}_proj"].T for p in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{name}.mlp.down_proj"].T
    return rms_norm(x, norms["model.norm"], epsilon) @ weights.get("lm_head", weights["model.embed_tokens"]).T


def main():
    kind, target = sys.argv[1], pathlib.Path(sys.argv[2])
    sources = [pathlib.Path(path) for path in sys.argv[3:]]
    first = read(sources[0] / "model.safetensors")
    config = json.loads((sources[0] / "config.json").read_text())
    hidden, mlp = config["hidden_size"], MLP[kind]
    # EXL3 rotates 128 outputs together, so that it needs both key heads of its source.
    kv_heads = 2 if kind == "exl3" else 1
    cut, decode = {"exl3": (exl3_cut, exl3_decode), "mlx": (mlx_cut, mlx_decode)}[kind]
    places = [(read(path / "model.safetensors"), 0) for path in sources]
    if kind == "mlx":
        places = [(first, 0), (first, 1)]

    tensors, weights, norms = {}, {}, {}

    def add(source, module, new_module, rows, cols):
        parts = cut(source, module, rows, cols)
        tensors.update({new_module + suffix: part for suffix, part in parts.items()})
        weights[new_module] = decode(parts)

    def add_plain(source, module, new_module, into):
        dtype, array = source[module + ".weight"]
        tensors[new_module + ".weight"] = (dtype, array[:VOCABULARY] if array.ndim == 2 else array)
        into[new_module] = plain(tensors[new_module + ".weight"])

    if kind == "mlx":
        add(first, "model.embed_tokens", "model.embed_tokens", VOCABULARY, hidden)
    else:
        add_plain(first, "model.embed_tokens", "model.embed_tokens", weights)
        add(first, "lm_head", "lm_head", VOCABULARY, hidden)
    add_plain(first, "model.norm", "model.norm", norms)
    for layer, (source, number) in enumerate(places):
        old, new = f"model.layers.{number}", f"model.layers.{layer}"
        query, key = HEADS * HEAD_DIM, kv_heads * HEAD_DIM
        for module, rows, cols in (("self_attn.q_proj", query, hidden), ("self_attn.k_proj", key, hidden),
                                   ("self_attn.v_proj", key, hidden), ("self_attn.o_proj", hidden, query),
                                   ("mlp.gate_proj", mlp, hidden), ("mlp.up_proj", mlp, hidden),
                                   ("mlp.down_proj", hidden, mlp)):
            add(source, f"{old}.{module}", f"{new}.{module}", rows, cols)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            add_plain(source, f"{old}.{norm}", f"{new}.{norm}", norms)

    config.update(num_hidden_layers=len(places), vocab_size=VOCABULARY, num_attention_heads=HEADS,
                  num_key_value_heads=kv_heads, head_dim=HEAD_DIM, intermediate_size=mlp)
    config.setdefault("rope_theta", config.get("rope_parameters", {}).get("rope_theta", 10000.0))
    for key in ("quantization", "quantization_config"):
        for module in list(config.get(key, {})):
            if module.startswith("model.") and module not in weights:
                del config[key][module]
    target.mkdir(parents=True, exist_ok=True)
    write(target / "model.safetensors", tensors)
    (target / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    logits = forward(config, weights, norms, len(places))
    write(target / "golden.st", {"tokens": ("I32", np.array(TOKENS, np.int32)),
                                 "logits": ("F32", logits.astype(np.float32))})
    print(target, "logits within", logits.min(), logits.max())


main()
