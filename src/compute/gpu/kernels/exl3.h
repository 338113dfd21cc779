// EXL3: trellis weights, the Hadamard rotations before and after their product, and tables
// (pack/exl3.h).
#pragma once

#include "compute/gpu/kernels/project.h"

namespace espalier::gpu::ESPALIER_DIALECT {

ESPALIER_DEVICE float rounded_to_half(float value) { return half_to_float(float_to_half(value)); }

// The weight of a 16-bit state in each codebook.
struct Mul1 {
  static ESPALIER_DEVICE float weight(uint32_t state) {
    const uint32_t x = state * 0x83dcd12du;
    const uint32_t bytes = (x & 0xff) + (x >> 8 & 0xff) + (x >> 16 & 0xff) + (x >> 24);
    // Exact until the one rounding to half.
    const float value = static_cast<float>(1024 + bytes) * half_to_float(0x1eee);
    return rounded_to_half(value + half_to_float(0xc931));
  }
};

// The sum of two halves that `bits` become.
ESPALIER_DEVICE float sum_of_halves(uint32_t bits) {
  bits = (bits & 0x8fff8fffu) ^ 0x3b603b60u;
  return rounded_to_half(half_to_float(static_cast<uint16_t>(bits & 0xffff)) +
                         half_to_float(static_cast<uint16_t>(bits >> 16)));
}
struct Mcg {
  static ESPALIER_DEVICE float weight(uint32_t state) { return sum_of_halves(state * 0xcbac1fedu); }
};
struct ThreeInst {
  static ESPALIER_DEVICE float weight(uint32_t state) {
    return sum_of_halves(state * 89226354u + 64248484u);
  }
};

// The weights between the rotations. A tile of 16 × 16 is a ring of 32-bit words, read from their
// top bits down; the state of weight t ends after bit ⌊(t + 1)·K⌋.
template <typename Codebook>
struct Exl3 {
  static ESPALIER_DEVICE float weight(Arguments<Weights> w, uint32_t row, uint32_t col) {
    const uint64_t tile_index = static_cast<uint64_t>(col / 16) * (w.rows / 16) + row / 16;
    const Codes tile = w.data + tile_index * w.block_bytes;
    const uint32_t output = row % 16;
    const uint32_t input = col % 16;
    // Its place in a tensor core's fragment: lane output mod 8 · 4 + input mod 8 / 2, eight each.
    const uint32_t t =
        (output % 8 * 4 + input % 8 / 2) * 8 + output / 8 * 4 + input / 8 * 2 + input % 2;
    const uint32_t double_bits = w.block_bytes / 16;
    const uint32_t ring = w.block_bytes * 8;
    const uint32_t end = (t + 1) * double_bits / 2;
    const uint32_t begin = (end + ring - 16) % ring;
    const uint32_t high = read32(tile + begin / 32 * 4);
    const uint32_t low = read32(tile + (begin + 32) % ring / 32 * 4);
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return Codebook::weight(static_cast<uint32_t>(both >> (48 - begin % 32)) & 0xffff);
  }
};

// Value i of a ring of `dim` symbols: its state is the newest of 16 symbols with those before it
// above. The ring is closed.
ESPALIER_DEVICE float ring_value(Codes ring, uint32_t block_bytes, uint32_t dim, uint32_t i) {
  const uint32_t bits = (block_bytes - 2) * 8 / dim;
  uint32_t state = 0;
  for (uint32_t s = i + dim - 15; s <= i + dim; ++s) {
    state = (state << bits | stream_code(ring + 2, s % dim, bits)) & 0xffff;
  }
  return Mul1::weight(state) * half_at(ring);
}

// N-gram tables: one ring a row, and the bias of the hash head that the row belongs to.
struct Exl3Ngram {
  static ESPALIER_DEVICE float weight(Arguments<Weights> w, uint32_t row, uint32_t col) {
    const Codes ring = w.data + static_cast<uint64_t>(row) * w.block_bytes;
    float value = ring_value(ring, w.block_bytes, w.block_values, col);
    if (w.heads != 0) {
      uint32_t head = 0;  // offsets are below 2³¹, as rows are
      while (head + 1 < w.heads && read32(w.head_offsets + (head + 1) * 8) <= row) ++head;
      value += half_at(w.zeros + (static_cast<uint64_t>(head) * w.block_values + col) * 2);
    }
    return rounded_to_half(value);
  }
};

// pack::hadamard of what the block's kSize threads hold: the same sums in the same order, before
// the division by √kSize.
template <int kSize>
ESPALIER_DEVICE float block_hadamard(Thread at, float value, Shared<float> values) {
  for (uint32_t stride = 1; stride < kSize; stride *= 2) {
    values[at.index] = value;
    barrier();
    const float other = values[at.index ^ stride];
    value = (at.index & stride) != 0 ? other - value : value + other;
    barrier();
  }
  return value;
}

template <int kSize>
struct HadamardMemory {
  SharedArray<float, kSize> values;
};

ESPALIER_CONSTANT uint32_t kHadamardRun = 128;  // of weight matrices
ESPALIER_CONSTANT uint32_t kRing = 256;         // of embedding tables

ESPALIER_DEVICE float run_hadamard(Thread at, float value,
                                   BlockMemory<HadamardMemory<kHadamardRun>> m) {
  return block_hadamard<kHadamardRun>(at, value, m->values) * 0.08838834764831845f;  // 1 / √128
}

// As embed, for embedding tables. A block for each ring of 256 values along x and each row along y.
ESPALIER_DEVICE void embed_exl3(Thread at, Arguments<EmbedArguments> args,
                                BlockMemory<HadamardMemory<kRing>> m) {
  const uint32_t rings = (args.table.cols + kRing - 1) / kRing;
  const uint64_t row = static_cast<uint32_t>(args.tokens[at.block_y]);
  float value = not_a_number();  // and with it the whole ring
  if (row < args.table.rows) {
    const Codes ring = args.table.data + (row * rings + at.block_x) * args.table.block_bytes;
    value = ring_value(ring, args.table.block_bytes, kRing, at.index);
  }
  const float rotated = block_hadamard<kRing>(at, value, m->values) * 0.0625f;  // 1 / √256
  const uint32_t col = at.block_x * kRing + at.index;
  if (col < args.table.cols) {
    args.y[static_cast<uint64_t>(at.block_y) * args.table.cols + col] =
        rounded_to_half(rotated * half_at(args.table.scales + col * 2));
  }
}

struct RotateArguments {
  Global<const float> x;     // prepare: [rows, from]; finish: [rows, padded]
  Codes scale;               // F16: suh [padded], svh [padded]
  Global<float> y;           // prepare: [rows, padded]; finish: [rows, from]
  uint32_t size;             // features
  uint32_t padded;           // up to the next multiple of 128
  Global<const float> bias;  // finish: [size] or null
};

// H(x ∘ suh), as pack::exl3_rotate_input. A block for each run of 128 along x and each row along y.
ESPALIER_DEVICE void exl3_prepare(Thread at, Arguments<RotateArguments> args,
                                  BlockMemory<HadamardMemory<kHadamardRun>> m) {
  const uint32_t k = at.block_x * kHadamardRun + at.index;
  float value = 0;
  if (k < args.size) {
    value = args.x[static_cast<uint64_t>(at.block_y) * args.size + k] * half_at(args.scale + k * 2);
  }
  args.y[static_cast<uint64_t>(at.block_y) * args.padded + k] = run_hadamard(at, value, m);
}

// H(x) ∘ svh + bias, as pack::exl3_rotate_output.
ESPALIER_DEVICE void exl3_finish(Thread at, Arguments<RotateArguments> args,
                                 BlockMemory<HadamardMemory<kHadamardRun>> m) {
  const uint32_t n = at.block_x * kHadamardRun + at.index;
  const float value =
      run_hadamard(at, args.x[static_cast<uint64_t>(at.block_y) * args.padded + n], m);
  if (n >= args.size) return;
  float scaled = value * half_at(args.scale + n * 2);
  if (args.bias != nullptr) scaled += args.bias[n];
  args.y[static_cast<uint64_t>(at.block_y) * args.size + n] = scaled;
}

}  // namespace espalier::gpu::ESPALIER_DIALECT
