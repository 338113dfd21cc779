// EXL3 layers of the codebooks MCG and 3INST at 1 to 16 rows on the half-precision tensor cores:
// the fast form of exl3_prepare, project_exl3_mcg or project_exl3_3inst, and exl3_finish.
#pragma once

#include "compute/gpu/cuda/exl3_mul1.h"

namespace espalier::gpu::cuda {

// A weight is the sum of the two halves of (state · multiplier + addend) & 0x8fff8fff ^ 0x3b603b60.
struct Exl3HalfCodebook {
  std::uint32_t multiplier, addend;
};
inline constexpr Exl3HalfCodebook kExl3Mcg = {0xcbac1fedu, 0};
inline constexpr Exl3HalfCodebook kExl3ThreeInst = {89226354u, 64248484u};

// Errors: bits or features that the product does not take.
[[nodiscard]] Status check_exl3_half(const Exl3Layer& layer);

// Bytes of device memory that calls one after the other may share, also with exl3_mul1, whatever
// their layers and rows.
[[nodiscard]] std::size_t exl3_half_workspace(const Exl3Layer& layer, std::uint32_t rows);

// y [rows, outputs] = H(H(x ∘ suh) W) ∘ svh + bias, of x [rows, inputs] and weights as
// exl3_mul1_arrange leaves them. A row's bits do not depend on the rows beside it. Launches kernels
// and does not wait for them. Errors: rows, bits or features that it does not take; what CUDA says.
[[nodiscard]] Status exl3_half(const Exl3Layer& layer, const Exl3HalfCodebook& codebook,
                               const float* x, std::uint32_t rows, float* y, void* workspace,
                               cudaStream_t stream);

}  // namespace espalier::gpu::cuda
