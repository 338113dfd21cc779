// Formats of integer codes with scales (GGUF's blocks, MLX's affine, GPTQ, AWQ, compressed-tensors)
// at 1 to 16 rows on the tensor cores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "compute/gpu/cuda/parts.h"

namespace espalier::gpu::cuda {

struct Weights;

namespace codes {

inline constexpr std::uint32_t kRows = 16;  // the most rows of a call

// How a format's matrices are arranged and multiplied.
struct Kernels;

// A matrix in the order in which the product reads it.
struct Layer {
  const Kernels* kernels = nullptr;
  const std::uint8_t* weights = nullptr;  // as arrange() leaves them
  const float* bias = nullptr;            // [outputs] or null
  std::uint32_t inputs = 0, outputs = 0;
  std::uint32_t scale_type = 0;  // pack::ScaleType
  std::uint32_t group = 0;       // inputs that share a scale, of formats that keep scales apart
};

// The format's kernels by the ending of the names of its portable ones, and for MLX the bits of a
// code; or null.
[[nodiscard]] const Kernels* find_kernels(std::string_view format, std::uint32_t bits);

// Whether the product takes the layer, whose weights need not be there yet. Errors: groups or a
// type of scales that it has not.
[[nodiscard]] Status check(const Layer& layer);

// Bytes of a layer's weights once they are arranged: those of the file, and what fills the last
// tile of 128 outputs or 256 inputs.
[[nodiscard]] std::size_t arranged_bytes(const Layer& layer);

// Arranges a matrix as it is in its file.
[[nodiscard]] Status arrange(const Layer& layer, const Weights& matrix, std::uint8_t* weights,
                             cudaStream_t stream);

// Outputs `first` (a multiple of 128) to `first` + `outputs` of arranged weights, times *factor, as
// halves [outputs, stride]; `stride` is a multiple of 4, its inputs beyond the last are zeros.
[[nodiscard]] Status decode(const Layer& layer, const float* factor, std::uint32_t first,
                            std::uint32_t outputs, std::uint32_t stride, std::uint16_t* halves,
                            cudaStream_t stream);

// Bytes of device memory that calls one after the other may share, whatever their layers and rows;
// of a call of several parts, those of any of them. It must be zero before the first.
[[nodiscard]] std::size_t workspace_bytes(const Layer& layer, std::uint32_t rows);

// One of the products of a call.
struct Part {
  Layer layer;
  float* y;  // [rows, outputs]
};

// Whether one call takes the parts. Errors: none or more than kMostParts; formats, groups, types of
// scales or numbers of inputs that differ; a part that the product does not take; more than 2²⁰
// outputs in all.
[[nodiscard]] Status check(std::span<const Part> parts);

// y [rows, outputs] = x [rows, inputs] · Wᵀ + bias of each part; x is prepared once for all. A
// row's bits do not depend on the rows beside it, but on the shapes of the parts before and after.
// Launches kernels and does not wait for them. Errors: of check(); rows that it does not take; what
// CUDA says.
[[nodiscard]] Status project(std::span<const Part> parts, const float* x, std::uint32_t rows,
                             void* workspace, cudaStream_t stream);

}  // namespace codes
}  // namespace espalier::gpu::cuda
