// The oracle: every operator as its equation in plain loops. Slow, and right; all kernels are
// tested against it.
#pragma once

#include <memory>

#include "compute/ops.h"

namespace espalier::reference {

// y [rows, w.rows] = x [rows, w.cols] · Wᵀ for every format: the definition of a product with a
// packed matrix. Weights are decoded exactly; a sum is taken in double, in the order of the inputs
// of each of eight interleaved partial sums, which are then added pairwise.
void project(std::size_t rows, const float* x, const pack::Matrix& w, float* y);

// Ops::delta_rule in its chunked form, which equals the recurrence up to rounding: rows of one
// sequence that follow each other are `chunk` at a time a product with the matrix S that they begin
// with, and a triangular system,
//   (I + tril(β Γ ∘ K Kᵀ, −1)) U = β (V − γ K S)
//   Y = scale · (γ Q S + tril(Γ ∘ Q Kᵀ) U)
//   S' = γ_last S + (Γ_last ∘ K)ᵀ U
// where Γ_tj is the product of what rows j + 1 to t keep and γ_t that of all rows to t. Yang et
// al., Parallelizing Linear Transformers with the Delta Rule over Sequence Length (2024),
// section 3.2; Gated Delta Networks (2024), section 3.3.
void chunked_delta_rule(std::span<const compute::Row> rows, std::size_t chunk,
                        const float* queries_keys, const float* values, const float* b,
                        const float* a, const compute::DeltaRule& rule,
                        const compute::RecurrentView& state, float* y);

[[nodiscard]] std::unique_ptr<compute::Ops> make_ops();

}  // namespace espalier::reference
