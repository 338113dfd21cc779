// y = x · Wᵀ + bias with packed matrices, and which kernel computes it: one table by format and
// number of rows.
#pragma once

#include <span>

#include "compute/gpu/cuda/matrix.h"
#include "compute/gpu/cuda/parts.h"

namespace espalier::gpu::cuda {

// One of the matrices that the same rows are multiplied by.
struct Part {
  const DeviceMatrix* weights = nullptr;
  const float* bias = nullptr;  // [outputs] or null; on the GPU, as all that follows
  float* y = nullptr;           // [rows, outputs]
};

// Queries, keys and values are one product of three parts, gate and up of two.
struct Product {
  std::span<const Part> parts;  // 1 to kMostParts, of one format and number of inputs
  const float* x = nullptr;     // [rows, inputs]
  std::uint32_t rows = 0;
  // Of workspace_bytes(), zero before the first product that uses it. Products of one kernel, one
  // after the other, may share it.
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
  // Of one part, or of parts that it joins.
  std::size_t (*workspace_bytes)(std::span<const Part> parts, std::uint32_t rows) = nullptr;
  Status (*enqueue)(Stream& stream, const Product& product) = nullptr;
  bool arranges = false;  // it needs the weights arranged (DeviceMatrix::arrange)
  // Whether it computes them by one launch that prepares the rows once; null: one at a time alone.
  bool (*joins)(std::span<const Part> parts) = nullptr;
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

// Bytes of a product's workspace.
[[nodiscard]] std::size_t workspace_bytes(const ProjectKernel& kernel, std::span<const Part> parts,
                                          std::uint32_t rows);

// Adds the product to the stream's work: in one launch where the kernel joins the parts, otherwise
// one part after the other. A part's bits may depend on the parts that it is joined with, but are
// the same on every run, and a row's do not depend on the rows beside it where they do not without
// the other parts. Errors: no parts, or more than kMostParts; parts of different formats or numbers
// of inputs; weights that are not arranged as the kernel needs them; rows that it does not take.
[[nodiscard]] Status project(Stream& stream, const ProjectKernel& kernel, const Product& product);

}  // namespace espalier::gpu::cuda
