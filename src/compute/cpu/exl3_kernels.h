// EXL3 matrices on the CPU: the states of a trellis tile become weights in registers.
//
// A MUL1 weight is a · (s − kMul1Zero) + b, where s is the sum of the four bytes of state ·
// 0x83dcd12d. With activations of 16 bits,
//
//   y[o] = Σ over runs of 128 inputs  x_scale · (a · Σ_i (s − kMul1Zero) · x[i]  +  b · Σ_i x[i])
//
// with exact integer sums. Weights of the other codebooks are sums of two numbers in half
// precision, and are multiplied as floats. The rounding of weights to half precision is left out in
// both.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pack/exl3.h"
#include "pack/matrix.h"

namespace espalier::cpu {

// Inputs that share a scale, and outputs that are computed together: one run of the rotations.
inline constexpr std::size_t kExl3Inputs = 128;
inline constexpr std::size_t kExl3Outputs = 128;

inline constexpr int kMul1Zero = 510;
inline constexpr int kMost16Bits = 32767;

// 128 rotated activations of one row as integers, in the order in which an instruction set's
// kernel has the weights of a tile of 16 × 16: neighbours belong to one output, and a pattern of
// 8 or 16 of them repeats through a vector.
struct Exl3Group {
  alignas(32) std::int16_t codes[kExl3Inputs * 2];
  alignas(32) std::int32_t offsets[8];  // −kMul1Zero · Σ codes of the pattern's pairs
  float scale;
  float sum;  // scale · Σ codes
};

// The tiles of a matrix between its rotations, in the order of the file or arranged (arrange.h):
// the one of inputs 16·i … and outputs 16·o … is at tiles + i · input_stride + o · output_stride.
struct Exl3Tiles {
  const std::byte* tiles;
  std::size_t input_stride;
  std::size_t output_stride;
  std::uint32_t bits;  // per weight
  pack::Codebook codebook;
};

// Those of w as the file has them, or as they were arranged.
[[nodiscard]] Exl3Tiles exl3_tiles(const pack::Matrix& w, const std::byte* arranged);

// Whether there are kernels for a matrix: of EXL3, with whole bits.
[[nodiscard]] bool has_exl3_kernel(const pack::Matrix& w);

// Rotated activations: integers for MUL1, floats for other codebooks.
struct Exl3Rows {
  const Exl3Group* groups;  // [rows, inputs / 128]
  const float* values;      // [rows, inputs]
  std::size_t rows;
  std::size_t inputs;
};

struct Exl3Kernels {
  bool vectors;  // whether there are products at all; none where vectors are single numbers

  // The orthonormal 128-point Hadamard transform, in place.
  void (*hadamard)(float* run);

  // Codes one row of 128 activations.
  void (*encode)(const float* x, Exl3Group& group);

  // y[r · y_stride + o] = the products of all rows with outputs [output, output + 128) of the
  // matrix between the rotations; scratch as sized.
  void (*multiply)(const Exl3Tiles& w, std::size_t output, const Exl3Rows& x, float* scratch,
                   float* y, std::size_t y_stride);
};

// Floats of scratch memory that `multiply` needs, aligned to 64 bytes.
[[nodiscard]] constexpr std::size_t exl3_scratch(std::size_t rows) {
  return (rows * 16 + kExl3Inputs) * 16;
}

// Those of the best instruction set of this machine.
[[nodiscard]] const Exl3Kernels& exl3_kernels();

}  // namespace espalier::cpu
