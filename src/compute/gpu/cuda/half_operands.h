// Both operands of a product in half precision, for matrix units: packed weights decoded,
// activations rounded. Powers of two bring them into the range of halves, and are undone exactly.
#pragma once

#include "compute/gpu/cuda/arguments.h"
#include "compute/gpu/cuda/stream.h"

namespace espalier::gpu::cuda {

// A packed matrix in device memory, for the functions below.
struct PackedOperand {
  std::string_view kernel;  // WeightShape::kernel
  Weights weights = {};
  bool arranged = false;  // EXL3 MUL1: in the order of exl3_mul1_arrange
  // EXL3, otherwise null: suh and svh, F16 of the padded sizes.
  const std::uint8_t* input_scale = nullptr;
  const std::uint8_t* output_scale = nullptr;
};

// What is kept beside a matrix: its weights times `factor`, a power of two, become halves, whose
// largest is from 2⁷ to 2⁸. The others are what a product multiplies and adds.
struct HalfScale {
  float factor;
  float inverse;
  float one;
  float zero;
};

// Whether weights of this WeightShape::kernel are decoded: all but embedding tables of EXL3.
[[nodiscard]] bool decodes_to_halves(std::string_view kernel);

// Finds the scale of a matrix in the file's order: reads all weights once. Infinities and NaNs do
// not count. Errors: weights that are not decoded.
[[nodiscard]] Status find_half_scale(Stream& stream, const PackedOperand& matrix, HalfScale* scale);

// Inputs of the matrix and of the rows in halves, which are in memory side by side: padded to a
// multiple of 8 with zeros.
[[nodiscard]] std::uint32_t padded_inputs(const PackedOperand& matrix);

// Outputs `first` to `first + count` as halves [count, padded inputs], times `scale`'s factor.
// EXL3: svh and the Hadamard transform of the outputs are in them. `first` is a multiple of 128.
[[nodiscard]] Status decode_halves(Stream& stream, const PackedOperand& matrix,
                                   const HalfScale* scale, std::uint32_t first, std::uint32_t count,
                                   std::uint16_t* halves);

// Rows of activations, x [rows, inputs], as halves [rows, padded inputs]. EXL3: H(x ∘ suh) of them.
// Rows whose largest magnitude is not from 2⁻⁸ to 2¹⁵ are multiplied by a power of two first;
// inverses [rows] are what undoes it, mostly 1.
[[nodiscard]] Status round_rows(Stream& stream, const PackedOperand& matrix, const float* x,
                                std::uint32_t rows, std::uint32_t inputs, std::uint16_t* halves,
                                float* inverses);

// y [rows, outputs] of rows with an inverse other than 1: (y − bias) · inverse + bias. `bias` may
// be null.
[[nodiscard]] Status undo_row_factors(Stream& stream, const float* inverses, const float* bias,
                                      std::uint32_t rows, std::uint32_t outputs, float* y);

}  // namespace espalier::gpu::cuda
