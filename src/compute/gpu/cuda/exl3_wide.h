// EXL3 layers of the MUL1 codebook at 17 rows and more on Hopper's tensor cores: each weight is
// decoded once for up to 256 rows.
#pragma once

#include "compute/gpu/cuda/exl3_mul1.h"

namespace espalier::gpu::cuda {

inline constexpr std::uint32_t kExl3WideRows = 65536;  // the most rows of a call

// Errors: bits or features that the product does not take; a current GPU that is not a Hopper
// (kWork).
[[nodiscard]] Status check_exl3_wide(const Exl3Layer& layer);

// Bytes of device memory that calls one after the other may share, whatever their layers and rows,
// also with those of exl3_mul1. It must be zero before the first. On the current GPU.
[[nodiscard]] std::size_t exl3_wide_workspace(const Exl3Layer& layer, std::uint32_t rows);

// y [rows, outputs] = H(H(x ∘ suh) W) ∘ svh + bias, of x [rows, inputs] and weights as
// exl3_mul1_arrange leaves them. x and y are aligned to 16 bytes.
// Activations are rounded to half after their rotation, weights are the format's, sums are float.
// A row's bits do not depend on what is in the rows beside it, but on how many there are. Launches
// kernels and does not wait for them.
// Errors: rows, bits or features that it does not take; a GPU that is not Hopper (kWork); what CUDA
// says.
[[nodiscard]] Status exl3_wide(const Exl3Layer& layer, const float* x, std::uint32_t rows, float* y,
                               void* workspace, cudaStream_t stream);

}  // namespace espalier::gpu::cuda
