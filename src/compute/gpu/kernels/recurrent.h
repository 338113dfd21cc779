// One step of a gated delta net: each row is the next token of a sequence of its own.
#pragma once

#include "compute/gpu/kernels/elementwise.h"

namespace espalier::gpu::ESPALIER_DIALECT {

struct ConvolutionArguments {
  Global<const float> x;            // [rows, channels]
  Global<const float> weight;       // [taps, channels]
  Global<float> state;              // [sequences, state_size]: compute::RecurrentView::convolution
  Global<const int32_t> sequences;  // [rows], all different
  Global<const int32_t> positions;  // [rows]; at 0 the state begins as zeros
  Global<float> y;                  // [rows, channels]; may be x
  uint32_t channels;
  uint32_t taps;
  uint32_t state_size;
};

// compute::CausalConvolution, whose kernel has `taps` elements. A thread for each channel of a row
// (blocks along y).
ESPALIER_DEVICE void causal_convolution(Thread at, Arguments<ConvolutionArguments> args,
                                        BlockMemory<NoMemory>) {
  const uint32_t c = at.block_x * at.threads + at.index;
  if (c >= args.channels) return;
  const uint64_t at_row = static_cast<uint64_t>(at.block_y) * args.channels + c;
  const Global<float> before =
      args.state + (static_cast<uint64_t>(args.sequences[at.block_y]) * args.state_size + c);
  const bool begins = args.positions[at.block_y] == 0;
  const float input = args.x[at_row];
  const uint32_t past = args.taps - 1;
  float sum = args.weight[past * args.channels + c] * input;
  float older = 0;
  for (uint32_t j = 0; j < past; ++j) {
    if (!begins) older = before[j * args.channels];
    sum = fma(args.weight[j * args.channels + c], older, sum);
    if (j > 0) before[(j - 1) * args.channels] = older;
  }
  if (past > 0) before[(past - 1) * args.channels] = input;
  args.y[at_row] = sum * sigmoid(sum);
}

ESPALIER_CONSTANT uint32_t kDeltaTile = 16;  // compute::DeltaRule::kTile
ESPALIER_CONSTANT uint32_t kDeltaParts = 8;  // of the key dimension, a thread each
ESPALIER_CONSTANT uint32_t kDeltaThreads = kDeltaTile * kDeltaParts;

struct DeltaArguments {
  Global<const float> queries_keys;  // [rows, 2, key_heads, key_dim]
  Global<const float> values;        // [rows, value_heads, value_dim]
  Global<const float> b;             // [rows, value_heads]
  Global<const float> a;             // [rows, value_heads]
  Global<const float> rate;          // [value_heads]
  Global<const float> dt_bias;       // [value_heads]
  Global<float> memory;              // [sequences, memory_size]: compute::RecurrentView::memory
  Global<const int32_t> sequences;   // [rows], all different
  Global<const int32_t> positions;   // [rows]; at 0 the memory begins as zeros
  Global<float> y;                   // [rows, value_heads, value_dim]
  uint32_t key_heads;
  uint32_t value_heads;
  uint32_t key_dim;
  uint32_t value_dim;
  uint32_t tiled;  // 1: value head h goes with key head h % key_heads, not h / (their ratio)
  uint32_t memory_size;
  float scale;
};

struct DeltaMemory {
  SharedArray<float, kDeltaThreads> held;
  SharedArray<float, kDeltaThreads> read;
};

// The sum of a column's parts, in order.
ESPALIER_DEVICE float sum_of_parts(Shared<float> parts, uint32_t column) {
  float sum = 0;
  for (uint32_t p = 0; p < kDeltaParts; ++p) sum += parts[p * kDeltaTile + column];
  return sum;
}

// compute::DeltaRule. A block for each (value head, tile of 16 columns) along x and each row along
// y; a thread for an eighth of a column.
ESPALIER_DEVICE void delta_step(Thread at, Arguments<DeltaArguments> args,
                                BlockMemory<DeltaMemory> m) {
  const uint32_t tiles = (args.value_dim + kDeltaTile - 1) / kDeltaTile;
  const uint32_t head = at.block_x / tiles;
  const uint32_t tile = at.block_x % tiles;
  const uint32_t column = at.index % kDeltaTile;
  const uint32_t part = at.index / kDeltaTile;
  const uint32_t v = tile * kDeltaTile + column;
  const uint64_t row_head = static_cast<uint64_t>(at.block_y) * args.value_heads + head;
  const uint32_t key_head =
      args.tiled != 0 ? head % args.key_heads : head / (args.value_heads / args.key_heads);
  const Global<const float> query =
      args.queries_keys +
      (static_cast<uint64_t>(at.block_y) * 2 * args.key_heads + key_head) * args.key_dim;
  const Global<const float> key = query + static_cast<uint64_t>(args.key_heads) * args.key_dim;
  const Global<float> s =
      args.memory +
      (static_cast<uint64_t>(args.sequences[at.block_y]) * args.memory_size +
       (static_cast<uint64_t>(head) * tiles + tile) * args.key_dim * kDeltaTile + column);
  const bool begins = args.positions[at.block_y] == 0;

  const float step = args.a[row_head] + args.dt_bias[head];
  const float softplus = fmax(step, 0.0f) + log(1 + exp(-fabs(step)));
  const float keep = exp(args.rate[head] * softplus);
  const float write = sigmoid(args.b[row_head]);

  float held = 0;
  if (!begins) {
    for (uint32_t k = part; k < args.key_dim; k += kDeltaParts) {
      held = fma(s[k * kDeltaTile], key[k], held);
    }
  }
  m->held[at.index] = held;
  barrier();
  const float value = v < args.value_dim ? args.values[row_head * args.value_dim + v] : 0.0f;
  const float change = write * (value - keep * sum_of_parts(m->held, column));
  float read = 0;
  for (uint32_t k = part; k < args.key_dim; k += kDeltaParts) {
    float old = 0;
    if (!begins) old = s[k * kDeltaTile];
    const float element = fma(key[k], change, keep * old);
    s[k * kDeltaTile] = element;
    read = fma(element, query[k], read);
  }
  m->read[at.index] = read;
  barrier();
  if (part == 0 && v < args.value_dim) {
    args.y[row_head * args.value_dim + v] = sum_of_parts(m->read, column) * args.scale;
  }
}

}  // namespace espalier::gpu::ESPALIER_DIALECT
