// The kernels' dialect as Metal's compiler sees it (dialect.h lists the words). Needs Metal 3:
// arguments are one struct, and its pointers are device addresses.
//
// No Metal device has run this. It is type-checked with Clang's address spaces
// (tests/compute/metal/).
#pragma once

#include <metal_stdlib>

#define ESPALIER_DIALECT metal_kernels
#define ESPALIER_DEVICE inline
#define ESPALIER_CONSTANT constant constexpr

namespace espalier::gpu::metal_kernels {

template <typename T>
using Global = device T*;
template <typename T>
using Shared = threadgroup T*;
template <typename T, int kCount>
using SharedArray = T[kCount];
template <typename S>
using BlockMemory = threadgroup S*;
template <typename T>
using Private = thread T*;
template <typename A>
using Arguments = constant const A&;

ESPALIER_DEVICE void barrier() {
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup | metal::mem_flags::mem_device);
}

template <typename T>
ESPALIER_DEVICE T shuffle(T value, uint32_t lane) {
  return metal::simd_shuffle(value, static_cast<ushort>(lane));
}
template <typename T>
ESPALIER_DEVICE T shuffle_xor(T value, uint32_t mask) {
  return metal::simd_shuffle_xor(value, static_cast<ushort>(mask));
}
template <typename T>
ESPALIER_DEVICE T shuffle_down(T value, uint32_t lanes) {
  return metal::simd_shuffle_down(value, static_cast<ushort>(lanes));
}
ESPALIER_DEVICE uint32_t ballot(bool vote) {
  return static_cast<uint32_t>(static_cast<metal::simd_vote::vote_t>(metal::simd_ballot(vote)));
}

ESPALIER_DEVICE uint32_t bits_of(float value) { return as_type<uint32_t>(value); }
ESPALIER_DEVICE float float_of(uint32_t bits) { return as_type<float>(bits); }
ESPALIER_DEVICE float half_to_float(uint16_t bits) {
  return static_cast<float>(as_type<half>(bits));
}
ESPALIER_DEVICE uint16_t float_to_half(float value) {
  return as_type<uint16_t>(static_cast<half>(value));
}

using metal::fabs;
using metal::floor;
using metal::fma;
using metal::fmax;
using metal::fmin;
using metal::precise::cos;
using metal::precise::exp;
using metal::precise::log;
using metal::precise::sin;
using metal::precise::sqrt;
using metal::precise::tanh;

}  // namespace espalier::gpu::metal_kernels

// A block's memory, as a variable of its kernel. The type check defines it as Clang wants it.
#ifndef ESPALIER_BLOCK_VARIABLE
#define ESPALIER_BLOCK_VARIABLE threadgroup
#endif

// Defines the kernel espalier_`name`, which runs `body` (last, so that it may hold commas).
#define ESPALIER_ENTRY(name, Args, Memory, ...)                                                \
  [[host_name("espalier_" #name)]] kernel void espalier_##name(                                \
      constant const Args& args [[buffer(0)]], uint3 block [[threadgroup_position_in_grid]],   \
      uint3 threads [[threads_per_threadgroup]], uint index [[thread_index_in_threadgroup]]) { \
    ESPALIER_BLOCK_VARIABLE Memory memory_of_##name;                                           \
    __VA_ARGS__({index, threads.x, block.x, block.y}, args, &memory_of_##name);                \
  }
