#!/usr/bin/env python3
"""Writes the seeds of safetensors_fuzz and hf_directory_fuzz: one of every form that each can read.

    fuzz/make_hf_corpus.py [FOLDER]      by default fuzz/corpus beside this script
"""
import json
import pathlib
import struct
import sys


def safetensors(header, data_bytes):
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(range(256))[:data_bytes]


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SAFETENSORS = {
    "empty": safetensors({}, 0),
    "metadata": safetensors({"__metadata__": {"format": "pt", "é": "ü"}, "a": entry("U8", [3], 0, 3)},
                            3),
    "null_metadata": safetensors({"__metadata__": None, "b.weight": entry("BF16", [2, 2], 0, 8)}, 8),
    "shapes": safetensors({"scalar": entry("F32", [], 0, 4), "none": entry("I64", [0, 9], 4, 4),
                           "f4": entry("F4", [2, 3], 4, 7), "f6": entry("F6_E2M3", [4], 7, 10)}, 10),
    "dtypes": safetensors({f"t{i}": entry(dtype, [1], 8 * i, 8 * i + 8) for i, dtype in
                           enumerate(["U64", "I64", "F64", "C64"])}, 32),
}


def quantized(**fields):
    return {"quantization_config": fields}


def compressed(*weights):
    return quantized(quant_method="compressed-tensors", format="pack-quantized",
                     config_groups={f"group_{i}": {"weights": w} for i, w in enumerate(weights)})


GPTQ = {"m.qweight": ["I32", [8, 16]], "m.qzeros": ["I32", [2, 2]], "m.scales": ["F16", [2, 16]]}
PACKED = {"m.weight_packed": ["I32", [5, 8]], "m.weight_scale": ["BF16", [5, 2]],
          "m.weight_shape": ["I32", [2]]}
MLX = {"m.weight": ["U32", [5, 8]], "m.scales": ["BF16", [5, 2]], "m.biases": ["BF16", [5, 2]]}
EXL3 = {"m.trellis": ["I16", [8, 8, 40]], "m.suh": ["F16", [128]], "m.svh": ["F16", [128]],
        "m.mul1": ["I32", []]}

# Configuration, tensors, bytes of their data.
ONE_FILE = {
    "plain": ({"model_type": "llama"}, {"m.weight": ["F32", [2, 3]], "m.bias": ["F16", [2]],
                                        "experts": ["BF16", [2, 2, 3]]}, b"\1\2\3"),
    "gptq_v1": (quantized(quant_method="gptq", bits=4, group_size=32, sym=True), GPTQ, b"\x77"),
    "gptq_v2": (quantized(quant_method="gptq", bits=4, group_size=-1, desc_act=True,
                          checkpoint_format="gptq_v2", pack_dtype="int32"),
                {"m.qweight": ["I32", [8, 16]], "m.qzeros": ["I32", [1, 2]],
                 "m.scales": ["F16", [1, 16]], "m.g_idx": ["I32", [64]]}, b""),
    "awq": (quantized(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm"),
            {"m.qweight": ["I32", [32, 2]], "m.qzeros": ["I32", [1, 2]], "m.scales": ["F16", [1, 16]]},
            b"\x12\x34"),
    "compressed": (compressed({"num_bits": 4, "type": "int", "symmetric": True, "group_size": 32},
                              {"num_bits": 4, "symmetric": False, "strategy": "channel"}),
                   {**PACKED, "m.weight_g_idx": ["I32", [64]]}, struct.pack("<II", 5, 64)),
    "compressed_channel": (compressed({"num_bits": 4, "symmetric": False, "strategy": "channel"}),
                           {**PACKED, "m.weight_scale": ["F16", [5, 1]],
                            "m.weight_zero_point": ["I32", [1, 1]]}, struct.pack("<II", 5, 64)),
    "mlx": ({"quantization": {"bits": 4, "group_size": 32, "mode": "affine", "x": {"bits": 6},
                              "y": False}}, MLX, b"\x3f"),
    "mlx_nvfp4": ({"quantization": {"mode": "nvfp4"}},
                  {"m.weight": ["U32", [5, 2]], "m.scales": ["U8", [5, 1]],
                   "m.global_scale": ["F32", []]}, b"\x3f"),
    "mlx_mxfp8": ({"quantization": {"mode": "mxfp8", "bits": 8, "group_size": 32}},
                  {"m.weight": ["U32", [5, 8]], "m.scales": ["U8", [5, 1]]}, b"\x7f"),
    "exl3": (quantized(quant_method="exl3", bits=2.5, head_bits=6), EXL3, b"\x3c"),
    "exl3_signs": (quantized(quant_method="exl3"),
                   {"m.trellis": ["I16", [8, 8, 16]], "m.su": ["I16", [8]], "m.sv": ["I16", [8]],
                    "m.mcg": ["I32", []]}, b"\x55\xaa"),
    "exl3_tables": (quantized(quant_method="exl3"),
                    {"e.trellis": ["I16", [10, 98]], "e.signs": ["F16", [2, 256]],
                     "n.shard_0.trellis": ["I16", [4, 41]], "n.shard_1.trellis": ["I16", [3, 41]],
                     "n.head_bias": ["F16", [2, 160]], "n.head_offsets": ["I64", [2]]}, b""),
    "unsupported": (quantized(quant_method="fp8"), {}, b""),
}


# Files in the order of hf_directory_fuzz.cc.
FILES = ("config.json", "quantize_config.json", "model.safetensors.index.json", "a.safetensors",
         "b.safetensors", "ngram_embedding.safetensors")
PLAIN = {"m.weight": ["F32", [2, 3]]}
MORE = {"n.weight": ["BF16", [3, 2]], "n.bias": ["F16", [3]]}
NGRAM = {"g.shard_0.trellis": ["I16", [4, 41]], "g.shard_1.trellis": ["I16", [3, 41]]}


def index(**shards):
    return {"metadata": {"total_size": 40},
            "weight_map": {tensor: f"{shard}.safetensors" for shard, tensors in shards.items()
                           for tensor in tensors}}


DIRECTORIES = {
    **{name: ({"config.json": config, "a.safetensors": tensors}, data)
       for name, (config, tensors, data) in ONE_FILE.items()},
    "indexed": ({"config.json": {}, "model.safetensors.index.json": index(a=PLAIN, b=MORE),
                 "a.safetensors": PLAIN, "b.safetensors": MORE}, b"\1\2\3"),
    "indexed_one": ({"config.json": {}, "model.safetensors.index.json": index(a=PLAIN),
                     "a.safetensors": PLAIN, "b.safetensors": MORE}, b"\1"),
    "indexed_astray": ({"config.json": {}, "model.safetensors.index.json": index(b=PLAIN, a=MORE),
                        "a.safetensors": PLAIN, "b.safetensors": MORE}, b"\1"),
    "indexed_elsewhere": ({"config.json": {}, "model.safetensors.index.json":
                           {"weight_map": {"m.weight": "../c.safetensors", "n": 1}},
                           "a.safetensors": PLAIN}, b""),
    "indexed_exl3": ({"config.json": quantized(quant_method="exl3", bits=3, head_bits=6),
                      "model.safetensors.index.json": index(a=EXL3, b=MORE), "a.safetensors": EXL3,
                      "b.safetensors": MORE, "ngram_embedding.safetensors": NGRAM}, b"\x3c"),
    "indexed_mlx": ({"config.json": {"quantization": {"bits": 4, "group_size": 32}},
                     "model.safetensors.index.json":
                     index(a=["m.weight"], b=["m.scales", "m.biases"]),
                     "a.safetensors": {"m.weight": MLX["m.weight"]},
                     "b.safetensors": {name: MLX[name] for name in ("m.scales", "m.biases")}},
                    b"\x3f"),
    "sharded": ({"config.json": {}, "a.safetensors": PLAIN, "b.safetensors": MORE}, b"\1\2\3"),
    "twice": ({"config.json": {}, "a.safetensors": PLAIN, "b.safetensors": PLAIN}, b"\1"),
    "gptq_older": ({"config.json": {}, "quantize_config.json":
                    {"bits": 4, "group_size": 32, "desc_act": False, "sym": True},
                    "a.safetensors": GPTQ}, b"\x77"),
}


def directory(files, data):
    return b"\0".join([*(json.dumps(files[name]).encode() if name in files else b""
                         for name in FILES), data])


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "corpus"
    for folder, seeds in (("safetensors", SAFETENSORS),
                          ("hf_directory", {name: directory(files, data)
                                            for name, (files, data) in DIRECTORIES.items()})):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, seed in seeds.items():
            (root / folder / name).write_bytes(seed)


if __name__ == "__main__":
    main()
