// RMS normalization.
#pragma once

#include "compute/gpu/dialect/dialect.h"

namespace espalier::gpu::ESPALIER_DIALECT {

struct RmsNormArguments {
  Global<const float> x;       // [rows, width]
  Global<const float> weight;  // [width]
  Global<float> y;             // [rows, width]; may be x
  uint32_t width;
  float epsilon;
};

struct RmsNormMemory {
  SharedArray<float, kMostWarps> warps;
};

// y = x / √(mean(x²) + epsilon) ∘ weight. A block for each row.
ESPALIER_DEVICE void rms_norm(Thread at, Arguments<RmsNormArguments> args,
                              BlockMemory<RmsNormMemory> m) {
  const uint64_t row = static_cast<uint64_t>(at.block_x) * args.width;
  float squares = 0;
  for (uint32_t i = at.index; i < args.width; i += at.threads) {
    const float x = args.x[row + i];
    squares = fma(x, x, squares);
  }
  const float mean = block_sum(at, squares, m->warps) / static_cast<float>(args.width);
  const float factor = 1 / sqrt(mean + args.epsilon);
  for (uint32_t i = at.index; i < args.width; i += at.threads) {
    args.y[row + i] = args.x[row + i] * factor * args.weight[i];
  }
}

}  // namespace espalier::gpu::ESPALIER_DIALECT
