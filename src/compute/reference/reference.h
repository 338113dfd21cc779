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

[[nodiscard]] std::unique_ptr<compute::Ops> make_ops();

}  // namespace espalier::reference
