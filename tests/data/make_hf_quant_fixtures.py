#!/usr/bin/env python3
"""Makes tests/data/hf_quant: small Hugging Face directories of 4-bit integer weights.

    pip install numpy
    python make_hf_quant_fixtures.py [--real DIR ...]

Each folder holds config.json and model.safetensors; NAME.expected.safetensors beside it has, for
every packed module, the decoded weights F32 [outputs, inputs]. They are computed from codes, zero
points and scales before these are packed, so that no unpacking code is trusted.

--real takes directories written by gptqmodel, autoawq or compressed-tensors, each with a
golden.safetensors whose tensors "dequant.MODULE" are what that library decodes. The first 16 outputs
of the first such module are cut out, bit for bit, into real-NAME.
"""
import argparse
import json
import pathlib
import shutil

import numpy as np

OUT = pathlib.Path(__file__).parent / "hf_quant"
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I32": np.uint32, "I64": np.int64}


# --- safetensors, with BF16 as its bits -----------------------------------------------------------


def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, array)."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array.astype(DTYPES[dtype], copy=False)).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_safetensors(path):
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, info in json.loads(raw[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        array = np.frombuffer(raw[start + begin:start + end], DTYPES[info["dtype"]])
        tensors[name] = (info["dtype"], array.reshape(info["shape"]))
    return tensors


# --- packing --------------------------------------------------------------------------------------


def words(nibbles):
    """[..., 8] -> 32-bit words [...], nibble 0 in the low bits."""
    result = np.zeros(nibbles.shape[:-1], np.uint32)
    for k in range(8):
        result |= nibbles[..., k].astype(np.uint32) << np.uint32(4 * k)
    return result


def along_rows(values, order=range(8)):
    """Packs [a, 8b] to [a, b]; nibble k is value order[k] of its eight."""
    eights = values.reshape(values.shape[0], -1, 8)
    return words(eights[..., list(order)])


def bfloat_bits(values):
    """Values that are bfloat16 already."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Layer:
    """Random codes, zero points and scales of [outputs, inputs], and the weights they stand for."""

    def __init__(self, rng, outputs, inputs, group, symmetric=False, act_order=False, bfloat=False):
        groups = inputs // group
        self.codes = rng.integers(0, 16, (outputs, inputs))
        self.zeros = np.full((outputs, groups), 8) if symmetric else rng.integers(
            0, 16, (outputs, groups))
        scales = rng.normal(0, 0.02, (outputs, groups)).astype(np.float16)  # of either sign
        scales.flat[:4] = [0, 6e-8, 65504, -65504]  # zero, subnormal, the largest
        if bfloat:
            self.scales = (scales.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
        else:
            self.scales = scales.astype(np.float32)
        self.group_of = np.arange(inputs) // group
        if act_order:
            self.group_of = rng.permutation(self.group_of)
        self.weights = self.scales[:, self.group_of] * (
            self.codes - self.zeros[:, self.group_of]).astype(np.float32)


def gptq(name, layer, version, with_groups=True):
    zeros = along_rows(layer.zeros.T)
    if version == 1:
        zeros = zeros - np.uint32(0x11111111)  # stored less one, as one subtraction of words
    tensors = {
        f"{name}.qweight": ("I32", along_rows(layer.codes).T),
        f"{name}.qzeros": ("I32", zeros),
        f"{name}.scales": ("F16", layer.scales.T),
    }
    if with_groups:
        tensors[f"{name}.g_idx"] = ("I32", layer.group_of)
    return tensors


def awq(name, layer):
    return {
        f"{name}.qweight": ("I32", along_rows(layer.codes.T, AWQ_ORDER)),
        f"{name}.qzeros": ("I32", along_rows(layer.zeros.T, AWQ_ORDER)),
        f"{name}.scales": ("F16", layer.scales.T),
    }


def compressed(name, layer, symmetric, bfloat=False, act_order=None):
    outputs, inputs = layer.codes.shape
    scales = ("BF16", bfloat_bits(layer.scales)) if bfloat else ("F16", layer.scales)
    tensors = {
        f"{name}.weight_packed": ("I32", along_rows(layer.codes)),
        f"{name}.weight_scale": scales,
        f"{name}.weight_shape": ("I64", np.array([outputs, inputs])),
    }
    if not symmetric:
        padded = np.zeros(((outputs + 7) // 8 * 8, layer.zeros.shape[1]), np.int64)
        padded[:outputs] = layer.zeros
        tensors[f"{name}.weight_zero_point"] = ("I32", along_rows(padded.T).T)
    if act_order is not None:
        tensors[f"{name}.weight_g_idx"] = ("I32", act_order)
    return tensors


def compressed_group(symmetric, strategy, group_size):
    return {"targets": ["Linear"], "input_activations": None, "output_activations": None,
            "weights": {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": strategy,
                        "group_size": group_size, "dynamic": False, "actorder": None}}


def write_directory(name, quantization, layers, tensors):
    folder = OUT / name
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_safetensors(folder / "model.safetensors", tensors)
    write_safetensors(OUT / f"{name}.expected.safetensors",
                      {module: ("F32", layer.weights) for module, layer in layers.items()})


def synthetic():
    rng = np.random.default_rng(4)

    layers = {"in_order": Layer(rng, 16, 256, 128), "act_order": Layer(rng, 16, 256, 128, act_order=True),
              "symmetric": Layer(rng, 8, 128, 128, symmetric=True)}
    tensors = {}
    for module, layer in layers.items():
        tensors |= gptq(module, layer, version=1)
    tensors["lm_head.weight"] = ("F16", rng.normal(0, 1, (4, 8)))
    tensors["norm.weight"] = ("BF16", bfloat_bits(np.array([1, -0.5, 3, 0.125])))
    write_directory("gptq-v1-g128", {"quant_method": "gptq", "bits": 4, "group_size": 128,
                                     "desc_act": True, "sym": False}, layers, tensors)

    layers = {"whole": Layer(rng, 16, 72, 72)}
    write_directory("gptq-v2-row", {"quant_method": "gptq", "bits": 4, "group_size": -1,
                                    "desc_act": False, "checkpoint_format": "gptq_v2"}, layers,
                    gptq("whole", layers["whole"], version=2, with_groups=False))

    layers = {"proj": Layer(rng, 24, 192, 64)}
    write_directory("awq-g64", {"quant_method": "awq", "bits": 4, "group_size": 64,
                                "zero_point": True, "version": "GEMM"}, layers,
                    awq("proj", layers["proj"]))

    layers = {"symmetric": Layer(rng, 11, 96, 32, symmetric=True, bfloat=True),
              "channel": Layer(rng, 20, 104, 104),
              "act_order": Layer(rng, 11, 96, 32, symmetric=True, act_order=True),
              "unordered": Layer(rng, 3, 64, 32, symmetric=True)}
    tensors = (compressed("symmetric", layers["symmetric"], True, bfloat=True)
               | compressed("channel", layers["channel"], False)
               | compressed("act_order", layers["act_order"], True,
                            act_order=layers["act_order"].group_of)
               | compressed("unordered", layers["unordered"], True,
                            act_order=np.full(64, 0xFFFFFFFF)))
    write_directory("ct-mixed", {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "quantization_status": "compressed",
        "config_groups": {"group_0": compressed_group(True, "group", 32),
                          "group_1": compressed_group(False, "channel", None)}}, layers, tensors)


# --- slices of real directories -------------------------------------------------------------------


def slice_real(source, outputs=16):
    tensors = read_safetensors(source / "model.safetensors")
    golden = read_safetensors(source / "golden.safetensors")
    name = next(n for n in golden if n.startswith("dequant."))
    module = name.removeprefix("dequant.")
    method = json.loads((source / "config.json").read_text())["quantization_config"]["quant_method"]
    by_columns = method in ("gptq", "awq")
    kept = {}
    for tensor, (dtype, array) in tensors.items():
        if not tensor.startswith(module + "."):
            continue
        part = tensor.removeprefix(module + ".")
        if part == "weight_shape":
            array = np.array([outputs, array[1]])
        elif part != "g_idx":
            packed = part in ("qzeros", "weight_zero_point") or (part, method) == ("qweight", "awq")
            count = outputs // 8 if packed else outputs
            array = array[:, :count] if by_columns else array[:count]
        kept[tensor] = (dtype, array)
    folder = OUT / f"real-{source.name}"
    folder.mkdir(parents=True)
    shutil.copy(source / "config.json", folder / "config.json")
    write_safetensors(folder / "model.safetensors", kept)
    write_safetensors(OUT / f"real-{source.name}.expected.safetensors",
                      {module: ("F32", golden[name][1][:outputs])})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", type=pathlib.Path, nargs="*", default=[])
    arguments = parser.parse_args()
    keep = [] if arguments.real else list(OUT.glob("real-*"))
    for path in OUT.glob("*"):
        if path not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    synthetic()
    for source in arguments.real:
        slice_real(source)


if __name__ == "__main__":
    main()
