// Products of dense matrices in half precision by cuBLASLt, NVIDIA's library. It is large (half a
// gigabyte) and not everywhere, so it is opened with the first product, not linked: all that needs
// no such product runs without it, and starts as fast.
#pragma once

#include "compute/gpu/cuda/stream.h"

namespace espalier::gpu::cuda {

// y = factor · x · wᵀ + bias, all in device memory, added up in float.
struct HalfProduct {
  const std::uint16_t* weights = nullptr;  // [outputs, inputs], 16-byte aligned
  const std::uint16_t* x = nullptr;        // [rows, inputs], 16-byte aligned
  const float* bias = nullptr;             // [outputs] or null
  float* y = nullptr;                      // [rows, stride]: outputs of each row
  const float* factor = nullptr;           // one number
  const float* zero = nullptr;             // a 0
  std::uint32_t outputs = 0;
  std::uint32_t rows = 0;
  std::uint32_t inputs = 0;  // a multiple of 8
  std::uint32_t stride = 0;
  void* workspace = nullptr;  // of kHalfWorkspace bytes, 256-byte aligned
};

inline constexpr std::size_t kHalfWorkspace = std::size_t{32} << 20;

// Whether the build knew cuBLASLt's header, and the library is on this machine.
[[nodiscard]] bool has_cublas_lt();

// Adds it to the stream's work. The same bits on every run with the same library and kind of GPU:
// only algorithms whose sums have a fixed order are taken, no atomics. Errors: the library is not
// there, or takes no such product.
[[nodiscard]] Status multiply_halves(Stream& stream, const HalfProduct& product);

}  // namespace espalier::gpu::cuda
