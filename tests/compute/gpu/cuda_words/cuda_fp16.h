// What CUDA's compiler and <cuda_fp16.h> give to code in which no thread needs another, for a host
// compiler: tests run such kernels thread by thread. (src/compute/gpu/cuda/codes_arrange.cuh.)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/half.h"

#define __device__
#define __host__
#define __global__
#define __launch_bounds__(...)

struct Place3 {
  unsigned x = 0, y = 0, z = 0;
};
inline Place3 threadIdx, blockIdx, blockDim;

inline unsigned max(unsigned a, unsigned b) { return std::max(a, b); }

struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

template <typename To, typename From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }

struct __half {
  std::uint16_t bits;
};
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half half) { return half.bits; }
inline float __half2float(__half half) { return espalier::half_to_float(half.bits); }
inline __half __float2half_rn(float value) { return {espalier::float_to_half(value)}; }

// Four bytes of the eight of b and a, by the nibbles of `places`; with the top bit of a nibble, the
// sign of that byte instead.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned places) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned place = places >> (4 * i) & 15;
    unsigned byte = bytes >> (8 * (place & 7)) & 255;
    if ((place & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}

// Lanes of a warp: declared, because headers name them, and not there.
template <typename T>
T __shfl_sync(unsigned lanes, T value, int lane);
template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int mask);
template <typename T>
T __shfl_down_sync(unsigned lanes, T value, unsigned apart);
unsigned __ballot_sync(unsigned lanes, bool vote);
void __syncthreads();
