#!/usr/bin/env python3
"""Makes tests/data/formats/exl3.safetensors: what exllamav3 makes of its packed formats.

    pip install numpy safetensors
    python cut_exl3_fixtures.py LAYERS.safetensors...

Decoding with exllamav3 itself takes an NVIDIA GPU, so this script only cuts small pieces out of larger
files that were made there: layers of 256 × 384 weights with random trellises, by versions 1.4.1 (whole
rates) and 1.6.5 (half rates and tables). Of each layer CODEBOOK.kK it keeps the first 128 × 128 weights:
  .trellis   I16 [8, 8, 16·K]
  .inner     F16 [32, 128]   what the library decodes of it: the first 32 input features
and of some the whole first 128 output features, with products:
  .product.trellis  I16 [16, 8, 16·K], .suh F16 [256], .svh F16 [128], .x F16 [17, 256]
  .y F64 [17, 128]  computed in double
  .y1, .y4, .y17    F32 by the library's kernels for that many rows
Tables are kept whole: embed.kK (.trellis, .signs, .out) and ngram.kK (.trellis, .head_bias, .heads: the head
of each row, .out).
"""
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

OUT = pathlib.Path(__file__).parent / "formats" / "exl3.safetensors"
PRODUCTS = ["3inst.k3", "mcg.k2", "mul1.k4", "mul1.k1.5", "mul1.k2.5", "mul1.k3.5"]


def main():
    tensors = {}
    for path in sys.argv[1:]:
        source = load_file(path)
        for name in source:
            case, _, part = name.rpartition(".")
            if case.startswith(("embed.", "ngram.")):
                tensors[f"{case}.{part.removesuffix('_f16')}"] = source[name]
            elif part == "inner_f16" and not case.endswith(".n512"):
                trellis = source[f"{case}.trellis"]
                tensors[f"{case}.trellis"] = trellis[:8, :8]
                tensors[f"{case}.inner"] = source[name][:32, :128]
                if case in PRODUCTS:
                    tensors[f"{case}.product.trellis"] = trellis[:, :8]
                    tensors[f"{case}.suh"] = source[f"{case}.suh"]
                    tensors[f"{case}.svh"] = source[f"{case}.svh"][:128]
                    tensors[f"{case}.x"] = source[f"{case}.x_f16"]
                    tensors[f"{case}.y"] = source[f"{case}.y_f64"][:, :128]
                    for rows in (1, 4, 17):
                        tensors[f"{case}.y{rows}"] = source[f"{case}.y_m{rows}"][:, :128]
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, OUT)
    OUT.chmod(0o644)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
