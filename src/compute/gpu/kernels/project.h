// What all packed formats need: the product with a few rows, and rows of an embedding.
#pragma once

#include "compute/gpu/kernels/weights.h"

namespace espalier::gpu::ESPALIER_DIALECT {

ESPALIER_CONSTANT uint32_t kProjectRows = 8;  // the most rows

struct ProjectArguments {
  Weights weights;           // [outputs, inputs]
  Global<const float> x;     // [rows, inputs]
  Global<const float> bias;  // [outputs] or null
  Global<float> y;           // [rows, outputs]
  uint32_t rows;             // 1 … kProjectRows
};

// y = x · Wᵀ + bias. A warp for each output; lane l adds up inputs l, l + 32, …, then the lanes are
// added in pairs. EXL3: the product between its rotations.
//
// This is the plain one for every format, which faster kernels are compared with.
template <typename Format>
ESPALIER_DEVICE void project(Thread at, Arguments<ProjectArguments> args, BlockMemory<NoMemory>) {
  const uint32_t output = at.block_x * warps_of(at) + warp_of(at);
  if (output >= args.weights.rows) return;
  const uint32_t inputs = args.weights.cols;
  float sums[kProjectRows];
  for (uint32_t r = 0; r < kProjectRows; ++r) sums[r] = 0;
  for (uint32_t col = lane_of(at); col < inputs; col += kLanes) {
    const float weight = Format::weight(args.weights, output, col);
    for (uint32_t r = 0; r < kProjectRows; ++r) {
      if (r >= args.rows) break;
      sums[r] = fma(weight, args.x[static_cast<uint64_t>(r) * inputs + col], sums[r]);
    }
  }
  for (uint32_t r = 0; r < kProjectRows; ++r) {
    if (r >= args.rows) break;
    float sum = warp_sum(sums[r]);
    if (args.bias != nullptr) sum += args.bias[output];
    if (lane_of(at) == 0) args.y[static_cast<uint64_t>(r) * args.weights.rows + output] = sum;
  }
}

struct EmbedArguments {
  Weights table;                 // [vocabulary, width]
  Global<const int32_t> tokens;  // [rows]
  Global<float> y;               // [rows, width]
};

// y[r] = row tokens[r] of the table, decoded; of a token that the table has not, NaN: a kernel may
// have chosen it, and then no host sees it. A thread for each value, rows along y.
template <typename Format>
ESPALIER_DEVICE void embed(Thread at, Arguments<EmbedArguments> args, BlockMemory<NoMemory>) {
  const uint32_t col = at.block_x * at.threads + at.index;
  if (col >= args.table.cols) return;
  const uint32_t token = static_cast<uint32_t>(args.tokens[at.block_y]);
  args.y[static_cast<uint64_t>(at.block_y) * args.table.cols + col] =
      token < args.table.rows ? Format::weight(args.table, token, col) : not_a_number();
}

}  // namespace espalier::gpu::ESPALIER_DIALECT
