// Products with packed matrices on the CPU. Weights stay packed where they are; threads split the
// output features.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"
#include "compute/workspace.h"
#include "pack/matrix.h"

namespace espalier::cpu {

// In which numbers the activations go into a product.
enum class Activations {
  kFloat32,  // as they are
  kCoded,    // in 8 bits with a scale for every 32, where the weights' format has codes
};

// Planes of 8 bits that coded activations have in a product with w: 1 or 2. On SmolLM2 in Q4_1, one
// plane everywhere gives a KL divergence of 2.4e-3 from float activations; a fifth each of it is
// due to keys with values and to the way down, a third to the head. Shapes like theirs take two
// planes.
[[nodiscard]] std::size_t activation_planes(const pack::Matrix& w);

// y [rows, w.rows] = x [rows, w.cols] · Wᵀ, for every format. EXL3 weights include their rotations.
//
// Tolerance class. With coded activations a product errs by at most Σ_i |w_i|·a_i/254, where a_i is
// the largest magnitude among the 32 activations of i's group, and a 254th of that with two planes;
// plus float rounding. A row's result has the same bits whatever the number of rows and threads.
void project(ThreadPool& pool, compute::Workspace& workspace, const float* x, std::size_t rows,
             const pack::Matrix& w, Activations activations, float* y);

}  // namespace espalier::cpu
