// The kernels' dialect on CUDA (dialect.h lists the words), for two compilers. nvcc compiles the
// kernels. Host code that launches them (ESPALIER_CUDA_HOST) sees the same structs of arguments,
// with plain pointers into device memory; the words that only a GPU knows are declared there and
// never called.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#else
#include "compute/gpu/cuda/kernel.h"
#endif

#define ESPALIER_DIALECT cuda
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

#if defined(__CUDACC__)

#define ESPALIER_DEVICE __device__ inline

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

// Defines the kernel espalier_`name`, which runs `body` (last, so that it may hold commas).
#define ESPALIER_ENTRY(name, Args, Memory, ...)                                    \
  extern "C" __global__ void espalier_##name(const Args args) {                    \
    __shared__ Memory memory;                                                      \
    __VA_ARGS__({threadIdx.x, blockDim.x, blockIdx.x, blockIdx.y}, args, &memory); \
  }

#else

#define ESPALIER_DEVICE inline

void barrier();
template <typename T>
T shuffle(T value, uint32_t lane);
template <typename T>
T shuffle_xor(T value, uint32_t mask);
template <typename T>
T shuffle_down(T value, uint32_t lanes);
uint32_t ballot(bool vote);
uint32_t bits_of(float value);
float float_of(uint32_t bits);
float half_to_float(uint16_t half);
uint16_t float_to_half(float value);

// Defines the function launch::`name`, which runs the kernel on a grid and waits for it.
#define ESPALIER_ENTRY(name, Args, Memory, ...)                               \
  namespace launch {                                                          \
  [[nodiscard]] inline Status name(const Grid& grid, const Args& args) {      \
    return run_and_wait(#name, grid, {.bytes = &args, .size = sizeof(args)}); \
  }                                                                           \
  }

#endif

}  // namespace espalier::gpu::cuda
