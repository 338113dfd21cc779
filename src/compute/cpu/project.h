// Products with packed matrices on the CPU. Weights stay packed where they are; threads split the
// output features.
#pragma once

#include <cstddef>
#include <span>

#include "base/thread_pool.h"
#include "compute/cpu/row_kernels.h"
#include "compute/workspace.h"
#include "pack/matrix.h"

namespace espalier::cpu {

// In which numbers the activations go into a product.
enum class Activations {
  kFloat32,  // as they are
  kCoded,    // as integers of 15 bits with a scale for every 32, where the format has codes
};

// What is multiplied, [rows, cols]: x, or gate(x, up) where there is a gate.
struct Inputs {
  const float* x;
  const float* up = nullptr;
  RowKernels::Gate gate = nullptr;
};

// A matrix to multiply with.
struct Product {
  const pack::Matrix* w;
  const std::byte* arranged;  // w by an Arranger, or null
  float* y;                   // [rows, w.rows]
};

// y = inputs · Wᵀ for each of `products`, in any formats. EXL3 weights include their
// rotations.
//
// Tolerance class. With coded activations a product errs by at most Σ_i |w_i|·a_i/32512, where a_i
// is the largest magnitude among the 32 activations of i's group; plus float rounding. A row's
// result has the same bits whatever the number of rows and threads.
void project(ThreadPool& pool, compute::Workspace& workspace, const Inputs& inputs,
             std::size_t rows, std::span<const Product> products, Activations activations);

}  // namespace espalier::cpu
