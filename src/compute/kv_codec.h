// How a head's vector lies in the cache of keys and values: the definition, in plain code, of what
// every backend stores and reads.
//
// kQ8 and kQ4 are GGUF's blocks Q8_0 and Q4_0 of 32 values, the last filled up with zeros. They
// hold the vector turned by a Hadamard matrix, which spreads an outlier of a key over all codes
// (QuaRot: Ashkboos et al., 2024). As the turn is orthonormal, scores are those of queries turned
// alike, and a sum of values is turned back at the end.
#pragma once

#include <cstddef>

#include "compute/kv_view.h"

namespace espalier::compute {

inline constexpr std::size_t kKvBlock = 32;          // values under one scale
inline constexpr std::size_t kMostKvRotation = 256;  // longest piece that is turned

// The length of the pieces of a vector that are turned, a power of two from 32 to kMostKvRotation;
// 0: it stays as it is.
[[nodiscard]] std::size_t kv_rotation(KvType type, std::size_t head_dim);

// Turns x [size] in place, where `size` is what kv_rotation gives; its own inverse.
void rotate_kv(std::size_t size, float* x);

// Writes kv_row_bytes(type, head_dim) bytes. A block of kQ8 or kQ4 with a value that it cannot hold
// (infinite, NaN, beyond what a half-precision scale reaches) decodes to NaN.
void encode_kv(KvType type, const float* x, std::size_t head_dim, std::byte* to);

void decode_kv(KvType type, const std::byte* from, std::size_t head_dim, float* x);

}  // namespace espalier::compute
