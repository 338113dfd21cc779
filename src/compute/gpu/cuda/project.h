// y = x · Wᵀ + bias with a packed matrix, and which kernel computes it: one table by format and
// number of rows.
#pragma once

#include <span>

#include "compute/gpu/cuda/matrix.h"

namespace espalier::gpu::cuda {

struct Product {
  const DeviceMatrix* weights = nullptr;
  const float* x = nullptr;     // [rows, inputs], on the GPU, as all that follows
  const float* bias = nullptr;  // [outputs] or null
  float* y = nullptr;           // [rows, outputs]
  std::uint32_t rows = 0;
  // Of the kernel's workspace_bytes, zero before the first product that uses it. Products of one
  // kernel, one after the other, may share it.
  void* workspace = nullptr;
};

// One way to compute it.
struct ProjectKernel {
  std::string_view name;    // as users choose it
  std::string_view format;  // of which it serves those whose name begins so
  std::uint32_t least_rows = 1;
  std::uint32_t most_rows = 0;
  bool (*takes)(const DeviceMatrix& weights) = nullptr;  // or null: all shapes
  // From the oracle's result: ‖y − expected‖ / ‖expected‖ for rows and weights of a normal kind.
  double allowed_difference = 0;
  std::size_t (*workspace_bytes)(const DeviceMatrix& weights, std::uint32_t rows) = nullptr;
  Status (*enqueue)(Stream& stream, const Product& product) = nullptr;
  bool arranges = false;  // it needs the weights arranged (DeviceMatrix::arrange)
};

// All of them, the fastest first; the last, "portable", serves every format.
[[nodiscard]] std::span<const ProjectKernel> project_kernels();

// Rows from which on weights are decoded to halves once and multiplied by matrix units. Up to here
// a row's bits do not depend on the number of rows.
inline constexpr std::uint32_t kDecodedRows = 17;

// Whether a kernel serves the format, shape and number of rows.
[[nodiscard]] bool serves(const ProjectKernel& kernel, const DeviceMatrix& weights,
                          std::uint64_t rows);

// The kernel that was the fastest when this kind of GPU was tuned (compute/gpu/tuned.h), if it was;
// otherwise the first that serves the format, shape and number of rows, and has that name where
// `name` is not empty. Errors: there is none.
[[nodiscard]] Result<const ProjectKernel*> choose_project_kernel(const DeviceMatrix& weights,
                                                                 std::uint64_t rows,
                                                                 std::string_view name = {});

}  // namespace espalier::gpu::cuda
