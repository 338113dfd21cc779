// Products with many rows, of every format: the matrix is decoded to halves once, all rows are
// multiplied by it on the matrix units (cuBLASLt). A kernel of project.h's table.
#pragma once

#include "compute/gpu/cuda/project.h"

namespace espalier::gpu::cuda {

// Whether there are weights to decode, and cuBLASLt.
[[nodiscard]] bool takes_decoded(const DeviceMatrix& weights);

[[nodiscard]] std::size_t decoded_workspace(const DeviceMatrix& weights, std::uint32_t rows);

// Of one part. Differs from the exact product by the rounding of weights and activations to halves:
// 2 to 3 · 10⁻⁴ of its size. Errors: the library is not there or takes no such product; what CUDA
// says.
[[nodiscard]] Status enqueue_decoded(Stream& stream, const Product& product);

}  // namespace espalier::gpu::cuda
