// GGUF's K-quants: 256 values of a row form a super-block with one or two half-precision scales;
// within it, small groups have scales of a few bits. Layout as in ggml's block_q2_K … block_q8_K.
#pragma once

#include "base/half.h"
#include "pack/block_codec.h"

namespace espalier::pack {

// 6.5625 bits per weight. value = scale · scales[value / 16] · (code − 32), code 0 … 63.
struct BlockQ6_K {
  static constexpr int kValues = 256;
  // Two halves of 128 values. In each, value 32q + l (q 0 … 3, l 0 … 31) has its low four bits in
  // byte l + 32·(q mod 2) of 64 (q < 2 the low nibble, else the high one), its top two in bits
  // 2q, 2q+1 of byte l of 32.
  std::uint8_t low[128];
  std::uint8_t high[64];
  std::int8_t scales[16];
  std::uint16_t scale;  // F16

  void decode(float* out) const;
};
static_assert(sizeof(BlockQ6_K) == 210);

}  // namespace espalier::pack
