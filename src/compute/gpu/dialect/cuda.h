// The kernels' dialect as nvcc compiles it (dialect.h lists the words).
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "compute/gpu/grid.h"

#define ESPALIER_DIALECT cuda
#define ESPALIER_DEVICE __device__ inline
#define ESPALIER_CONSTANT constexpr

namespace espalier::gpu::cuda {

template <typename T>
using Global = T*;
template <typename T>
using Shared = T*;
template <typename T, int kCount>
using SharedArray = T[kCount];
template <typename S>
using BlockMemory = S*;
template <typename T>
using Private = T*;
template <typename A>
using Arguments = const A&;

constexpr unsigned kAllLanes = 0xffffffffu;

ESPALIER_DEVICE void barrier() { __syncthreads(); }

template <typename T>
ESPALIER_DEVICE T shuffle(T value, uint32_t lane) {
  return __shfl_sync(kAllLanes, value, static_cast<int>(lane));
}
template <typename T>
ESPALIER_DEVICE T shuffle_xor(T value, uint32_t mask) {
  return __shfl_xor_sync(kAllLanes, value, static_cast<int>(mask));
}
template <typename T>
ESPALIER_DEVICE T shuffle_down(T value, uint32_t lanes) {
  return __shfl_down_sync(kAllLanes, value, lanes);
}
ESPALIER_DEVICE uint32_t ballot(bool vote) { return __ballot_sync(kAllLanes, vote); }

ESPALIER_DEVICE uint32_t bits_of(float value) { return __float_as_uint(value); }
ESPALIER_DEVICE float float_of(uint32_t bits) { return __uint_as_float(bits); }
ESPALIER_DEVICE float half_to_float(uint16_t half) { return __half2float(__ushort_as_half(half)); }
ESPALIER_DEVICE uint16_t float_to_half(float value) {
  return __half_as_ushort(__float2half_rn(value));
}

// The overloads for float: compiled with neither fast math nor contraction.
using std::cos;
using std::exp;
using std::fabs;
using std::floor;
using std::fma;
using std::fmax;
using std::fmin;
using std::log;
using std::sin;
using std::sqrt;
using std::tanh;

}  // namespace espalier::gpu::cuda

namespace espalier::gpu::cuda {

// Waits for what was launched; the error is the launch's or the kernel's.
[[nodiscard]] inline Status finish(std::string_view kernel) {
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return {};
  // nvcc cannot check fmt's format strings.
  return Error{ErrorKind::kWork, std::string(kernel) + ": " + cudaGetErrorString(error)};
}

}  // namespace espalier::gpu::cuda

// Defines the kernel espalier_`name`, which runs `body` (last, so that it may hold commas), and the
// function launch::`name`, which runs the kernel on a grid and waits for it.
#define ESPALIER_ENTRY(name, Args, Memory, ...)                                    \
  extern "C" __global__ void espalier_##name(const Args args) {                    \
    __shared__ Memory memory;                                                      \
    __VA_ARGS__({threadIdx.x, blockDim.x, blockIdx.x, blockIdx.y}, args, &memory); \
  }                                                                                \
  namespace launch {                                                               \
  [[nodiscard]] inline Status name(const Grid& grid, const Args& args) {           \
    espalier_##name<<<dim3(grid.blocks_x, grid.blocks_y), grid.threads>>>(args);   \
    return finish(#name);                                                          \
  }                                                                                \
  }
