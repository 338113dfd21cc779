// Operators that take each element by itself: a thread for each.
#pragma once

#include "compute/gpu/dialect/dialect.h"

namespace espalier::gpu::ESPALIER_DIALECT {

ESPALIER_DEVICE float sigmoid(float x) { return 1 / (1 + exp(-x)); }

// The activations of compute::Activation, and what they multiply.
struct Silu {
  static ESPALIER_DEVICE float gated(float gate, float up) { return gate * sigmoid(gate) * up; }
};
struct GeluTanh {
  static ESPALIER_DEVICE float gated(float gate, float up) {
    const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);  // √(2/π)
    return gate / 2 * (1 + tanh(inner)) * up;
  }
};
struct Sigmoid {
  static ESPALIER_DEVICE float gated(float gate, float up) { return sigmoid(gate) * up; }
};
struct ClampedSwiglu {
  static ESPALIER_DEVICE float gated(float gate, float up) {
    const float x = fmin(gate, 7.0f);
    return x * sigmoid(1.702f * x) * (fmin(fmax(up, -7.0f), 7.0f) + 1);
  }
};

struct GateArguments {
  Global<const float> gate;  // [count]
  Global<const float> up;    // [count]
  Global<float> y;           // [count]; may be gate or up
  uint32_t count;
};

// y = activation(gate) ∘ up.
template <typename Activation>
ESPALIER_DEVICE void gate(Thread at, Arguments<GateArguments> args, BlockMemory<NoMemory>) {
  const uint32_t i = at.block_x * at.threads + at.index;
  if (i < args.count) args.y[i] = Activation::gated(args.gate[i], args.up[i]);
}

struct UnaryArguments {
  Global<const float> x;  // [count]
  Global<float> y;        // [count]
  uint32_t count;
  float number;  // factor or cap
};

// y += x.
ESPALIER_DEVICE void add(Thread at, Arguments<UnaryArguments> args, BlockMemory<NoMemory>) {
  const uint32_t i = at.block_x * at.threads + at.index;
  if (i < args.count) args.y[i] += args.x[i];
}

// y = factor · x; y may be x.
ESPALIER_DEVICE void scale(Thread at, Arguments<UnaryArguments> args, BlockMemory<NoMemory>) {
  const uint32_t i = at.block_x * at.threads + at.index;
  if (i < args.count) args.y[i] = args.x[i] * args.number;
}

// y = cap · tanh(x / cap); y may be x.
ESPALIER_DEVICE void softcap(Thread at, Arguments<UnaryArguments> args, BlockMemory<NoMemory>) {
  const uint32_t i = at.block_x * at.threads + at.index;
  if (i < args.count) args.y[i] = args.number * tanh(args.x[i] / args.number);
}

struct RopeArguments {
  Global<float> x;                  // [rows, heads, head_dim], rotated in place
  Global<const int32_t> positions;  // [rows]
  Global<const uint64_t> turns;     // [pairs]: rope_turns() of each frequency
  uint32_t heads;
  uint32_t head_dim;
  uint32_t pairs;
  uint32_t step;   // from the first element of a pair to that of the next: halves 1, interleaved 2
  uint32_t apart;  // from the first element of a pair to the second: halves `pairs`, interleaved 1
  float magnitude;
};

// Rotary position embedding as compute::Rope says. A thread for each pair of a row (blocks along
// y).
//
// An angle is a fraction of a turn in 64 bits, so that position · frequency wraps around exactly:
// as a float it would be off by 10⁻³ at position 10⁵.
ESPALIER_DEVICE void rope(Thread at, Arguments<RopeArguments> args, BlockMemory<NoMemory>) {
  const uint32_t pair = at.block_x * at.threads + at.index;
  if (pair >= args.heads * args.pairs) return;
  const uint32_t i = pair % args.pairs;
  const int64_t position = args.positions[at.block_y];
  const uint64_t turn = static_cast<uint64_t>(position) * args.turns[i];
  const float angle =
      static_cast<float>(static_cast<int32_t>(turn >> 32)) * 1.4629180793e-9f;  // 2π / 2³²
  const float cosine = cos(angle) * args.magnitude;
  const float sine = sin(angle) * args.magnitude;
  const uint64_t head = static_cast<uint64_t>(at.block_y) * args.heads + pair / args.pairs;
  const Global<float> x = args.x + (head * args.head_dim + i * args.step);
  const float a = x[0];
  const float b = x[args.apart];
  x[0] = a * cosine - b * sine;
  x[args.apart] = a * sine + b * cosine;
}

}  // namespace espalier::gpu::ESPALIER_DIALECT
