// EXL3 matrices with the MUL1 codebook on the CPU: the states of a trellis tile become integers
// that are affine in the weights, and are multiplied with activations of 16 bits.
//
// A MUL1 weight is a · (s − kMul1Zero) + b, where s is the sum of the four bytes of state ·
// 0x83dcd12d, and then rounded to half precision. The rounding is left out here. So
//
//   y[o] = Σ over runs of 128 inputs  x_scale · (a · Σ_i (s − kMul1Zero) · x[i]  +  b · Σ_i x[i])
//
// with exact integer sums.
#pragma once

#include <cstddef>
#include <cstdint>

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

struct Exl3Kernels {
  // Whether there is a kernel for a matrix of that many bits per weight; none where vectors are
  // single numbers.
  bool (*supports)(std::uint32_t bits);

  // The orthonormal 128-point Hadamard transform, in place.
  void (*hadamard)(float* run);

  // Codes one row of 128 activations.
  void (*encode)(const float* x, Exl3Group& group);

  // y[r · y_stride + o] = the products of rows [0, rows) with outputs [output, output + 128) of the
  // matrix between the rotations. Row r's groups are groups[r · cols / 128 + …]; scratch as sized.
  void (*multiply)(const pack::Matrix& inner, std::size_t output, const Exl3Group* groups,
                   std::size_t rows, float* scratch, float* y, std::size_t y_stride);
};

// Floats of scratch memory that `multiply` needs, aligned to 64 bytes.
[[nodiscard]] constexpr std::size_t exl3_scratch(std::size_t rows) {
  return rows * kExl3Outputs * 8 + kExl3Inputs * 16 / 2;
}

// Those of the best instruction set of this machine.
[[nodiscard]] const Exl3Kernels& exl3_kernels();

}  // namespace espalier::cpu
