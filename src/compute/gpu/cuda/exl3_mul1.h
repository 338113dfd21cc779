// EXL3 layers of the MUL1 codebook at 1 to 16 rows on the integer tensor cores: the fast form of
// exl3_prepare, project_exl3_mul1 and exl3_finish.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "compute/gpu/cuda/parts.h"

namespace espalier::gpu::cuda {

// A layer in device memory; features padded to multiples of 128.
struct Exl3Layer {
  const std::uint32_t* weights;  // as exl3_mul1_arrange leaves them
  const std::uint16_t* suh;      // F16 [padded_inputs]
  const std::uint16_t* svh;      // F16 [padded_outputs]
  const float* bias;             // [outputs] or null
  std::uint32_t double_bits;     // twice the bits a weight
  std::uint32_t inputs, outputs;
  std::uint32_t padded_inputs, padded_outputs;
};

inline constexpr std::uint32_t kExl3Rows = 16;  // the most rows of a call
// At the start of a workspace, where exl3_mul1 counts; exl3_half leaves them alone.
inline constexpr std::size_t kExl3CountBytes = 16384;

// Errors: bits or features that the product does not take.
[[nodiscard]] Status check_exl3_mul1(const Exl3Layer& layer);

// Puts the bits of a trellis, [padded_inputs / 16, padded_outputs / 16] tiles as in the file, into
// the order in which the product reads them. As many bytes; the two must not overlap. Errors: bits
// or features that the product does not take; what CUDA says.
[[nodiscard]] Status exl3_mul1_arrange(const Exl3Layer& layer, const std::uint32_t* trellis,
                                       std::uint32_t* weights, cudaStream_t stream);

// One of the products of a call.
struct Exl3Part {
  Exl3Layer layer;
  float* y;  // [rows, outputs]
};

// Whether one call takes the parts. Errors: none or more than kMostParts; rates or numbers of
// inputs that differ; a part that the product does not take; more outputs in all than it takes of
// one.
[[nodiscard]] Status check_exl3_mul1(std::span<const Exl3Part> parts);

// Bytes of device memory that calls one after the other may share. It must be zero before the
// first.
[[nodiscard]] std::size_t exl3_mul1_workspace(std::span<const Exl3Part> parts, std::uint32_t rows);

// y [rows, outputs] = H(H(x ∘ suh) W) ∘ svh + bias of each part, of x [rows, inputs]. The bits do
// not depend on the rows beside a row, nor on the parts beside a part. Launches kernels and does
// not wait for them.
// Errors: of check_exl3_mul1; rows that it does not take; a GPU whose blocks have too little shared
// memory (kWork); what CUDA says.
[[nodiscard]] Status exl3_mul1(std::span<const Exl3Part> parts, const float* x, std::uint32_t rows,
                               void* workspace, cudaStream_t stream);

}  // namespace espalier::gpu::cuda
