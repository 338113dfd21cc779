// Errors of CUDA's runtime as values.
#pragma once

#include <cuda_runtime_api.h>

#include "base/result.h"

namespace espalier::gpu::cuda {

// An error that says what was tried, with an fmt format, and what CUDA said. (CUDA remembers an
// error until it is asked for it; this asks.)
template <typename... Args>
[[nodiscard]] Status check(cudaError_t error, fmt::format_string<Args...> what, Args&&... args) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return work_error("{}: CUDA says: {} ({})", fmt::format(what, std::forward<Args>(args)...),
                    cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace espalier::gpu::cuda
