#!/usr/bin/env python3
"""Makes tests/data/formats/mlx.safetensors: what MLX makes of its packed formats.

    pip install numpy safetensors "mlx[cpu]==0.32.4"
    python make_mlx_fixtures.py

input.TYPE F32 [rows, cols] holds values that TYPE (f16, bf16, f32) can represent. For a case
NAME.TYPE, where NAME is a format of Espalier, the file has what mlx.quantize gives for an array of
that type (.codes, .scales, .biases), .dequantized (by mlx.dequantize) and .product F32 [3, rows]: x
F32 [3, cols] times the matrix, by mlx.quantized_matmul. NVFP4 also comes with a tensor scale
(.global_scale). Cases NAME.random hold random bits, .scales with negative or special ones, and
.decoded F32. numpy has no BF16: the bits of such tensors are stored as U16.
"""
import pathlib

import mlx.core as mx
import numpy as np
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).parent / "formats" / "mlx.safetensors"
TYPES = {"f16": mx.float16, "bf16": mx.bfloat16, "f32": mx.float32}
FLOATS = {"MLX-MXFP4": ("mxfp4", 32, 4), "MLX-MXFP8": ("mxfp8", 32, 8), "MLX-NVFP4": ("nvfp4", 16, 4)}
COLS = 256


def inputs(random):
    """Rows of values: normal, of small weights, on code boundaries, and groups of special kinds."""
    special = [np.zeros(32), np.full(32, -0.75), np.abs(random.normal(size=32)) + 3,
               -np.abs(random.normal(size=32)), np.eye(32)[5] * 6, random.normal(size=32) * 1e-4,
               np.arange(-16, 16), np.where(np.arange(32) % 2 == 0, 1, -1)]
    return np.stack([random.normal(size=COLS), random.normal(size=COLS) * 0.02,
                     random.integers(-24, 25, COLS) / 4, np.concatenate(special)]).astype(np.float32)


def main():
    mx.set_default_device(mx.cpu)
    random = np.random.default_rng(4)
    values = inputs(random)
    x = mx.array(random.normal(size=(3, COLS)).astype(np.float32))
    tensors = {"x": x}
    for type_name, dtype in TYPES.items():
        matrix = mx.array(values).astype(dtype)
        tensors[f"input.{type_name}"] = matrix.astype(mx.float32)
        for bits in (1, 2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                case = f"MLX-{bits}-g{group}.{type_name}"
                parts = mx.quantize(matrix, group_size=group, bits=bits)
                tensors.update(zip((f"{case}.codes", f"{case}.scales", f"{case}.biases"), parts))
                tensors[f"{case}.dequantized"] = mx.dequantize(*parts, group_size=group, bits=bits)
                tensors[f"{case}.product"] = mx.quantized_matmul(x, *parts, group_size=group, bits=bits)
        for name, (mode, _, _) in FLOATS.items():
            scales = [None, mx.max(mx.abs(matrix)).astype(mx.float32)] if mode == "nvfp4" else [None]
            for global_scale in scales:
                case = f"{name}.{type_name}" + ("" if global_scale is None else ".global")
                codes, groups = mx.quantize(matrix, mode=mode, global_scale=global_scale)
                tensors[f"{case}.codes"], tensors[f"{case}.scales"] = codes, groups
                tensors[f"{case}.dequantized"] = mx.dequantize(
                    codes, groups, mode=mode, global_scale=global_scale, dtype=mx.float32)
                if global_scale is None:
                    tensors[f"{case}.product"] = mx.quantized_matmul(x, codes, groups, mode=mode)
                else:
                    tensors[f"{case}.global_scale"] = global_scale
    for bits in (1, 2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            codes = mx.array(random.integers(0, 2**32, (2, COLS * bits // 32), dtype=np.uint32))
            scales, biases = (mx.array(random.normal(size=(2, COLS // group)).astype(np.float32))
                              for _ in range(2))
            case = f"MLX-{bits}-g{group}.random"
            tensors.update({f"{case}.codes": codes, f"{case}.scales": scales, f"{case}.biases": biases,
                            f"{case}.decoded": mx.dequantize(codes, scales, biases, group_size=group,
                                                             bits=bits)})
    for name, (mode, group, bits) in FLOATS.items():
        # Every scale once, except the E8M0 code 255: NaN by the specification, 2^128 for MLX.
        # (Codes and scales that E4M3 makes NaN are NaN for both.)
        scales = np.arange(256, dtype=np.uint8).reshape(-1, COLS // group)
        if mode != "nvfp4":
            scales[-1, -1] = 127
        codes = random.integers(0, 2**32, (len(scales), COLS * bits // 32), dtype=np.uint32)
        case = f"{name}.random"
        tensors.update({f"{case}.codes": mx.array(codes), f"{case}.scales": mx.array(scales)})
        tensors[f"{case}.decoded"] = mx.dequantize(tensors[f"{case}.codes"], tensors[f"{case}.scales"],
                                                   mode=mode, dtype=mx.float32)
    save_file({name: np.array(tensor.view(mx.uint16) if tensor.dtype == mx.bfloat16 else tensor)
               for name, tensor in tensors.items()}, OUT)
    OUT.chmod(0o644)
    print(f"{OUT}: {OUT.stat().st_size} bytes, mlx {mx.__version__}")


if __name__ == "__main__":
    main()
