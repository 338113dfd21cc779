// GGUF's K-quants: 256 values of a row form a super-block with one or two half-precision scales;
// within it, small groups have scales of a few bits. Layout as in ggml's block_q2_K … block_q8_K.
// search() is one pass of an encoder that looks for the codes of least squared error
// (pack/scale_search.h); encode_block() in pack/block_codec.h makes of it one that gives every
// block of its own again, byte for byte, from what that decodes to.
#pragma once

#include "base/half.h"
#include "pack/block_codec.h"

namespace espalier::pack {

// 2.625 bits per weight. value = (scale · (scales[value / 16] & 15)) · code −
// (minimum · (scales[value / 16] >> 4)), code 0 … 3.
struct BlockQ2_K {
  static constexpr int kValues = 256;
  std::uint8_t scales[16];
  std::uint8_t codes[64];  // bits 2q, 2q+1 of byte 32h + l are value 128h + 32q + l
  std::uint16_t scale;     // F16
  std::uint16_t minimum;   // F16

  void decode(float* out) const;
  static BlockQ2_K search(const float* values);
};
static_assert(sizeof(BlockQ2_K) == 84);

// 3.4375 bits per weight. value = (scale · (s − 32)) · (code − 4), code 0 … 7, with the six-bit
// scale code s of the group of 16.
struct BlockQ3_K {
  static constexpr int kValues = 256;
  std::uint8_t high[32];  // bit 2 of the code of value v is bit v / 32 of byte v mod 32
  std::uint8_t low[64];   // bits 0 and 1, as in Q2_K
  // Group g has the low four bits of s in byte g mod 8 (g < 8 the low nibble, else the high one),
  // the top two in bits 2(g / 4), 2(g / 4) + 1 of byte 8 + g mod 4.
  std::uint8_t scales[12];
  std::uint16_t scale;  // F16

  void decode(float* out) const;
  static BlockQ3_K search(const float* values);
};
static_assert(sizeof(BlockQ3_K) == 110);

// 4.5 bits per weight. value = (scale · s) · code − (minimum · m), code 0 … 15, with the six-bit
// codes s and m of the group of 32.
struct BlockQ4_K {
  static constexpr int kValues = 256;
  std::uint16_t scale;    // F16
  std::uint16_t minimum;  // F16
  // Group g < 4: s in the low six bits of byte g, m in those of byte 4 + g. Group g ≥ 4: byte 4 + g
  // has the low four bits of s (low nibble) and of m (high nibble); the top two bits of s are those
  // of byte g − 4, the top two of m those of byte g.
  std::uint8_t scales[12];
  std::uint8_t codes[128];  // byte 32p + l has value 64p + l low and 64p + 32 + l high

  void decode(float* out) const;
  static BlockQ4_K search(const float* values);
};
static_assert(sizeof(BlockQ4_K) == 144);

// 5.5 bits per weight. As Q4_K, with code 0 … 31.
struct BlockQ5_K {
  static constexpr int kValues = 256;
  std::uint16_t scale;      // F16
  std::uint16_t minimum;    // F16
  std::uint8_t scales[12];  // as in Q4_K
  std::uint8_t high[32];    // bit 4 of the code of value v is bit v / 32 of byte v mod 32
  std::uint8_t codes[128];  // bits 0 … 3, as in Q4_K

  void decode(float* out) const;
  static BlockQ5_K search(const float* values);
};
static_assert(sizeof(BlockQ5_K) == 176);

// 6.5625 bits per weight. value = (scale · scales[value / 16]) · (code − 32), code 0 … 63.
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
  static BlockQ6_K search(const float* values);
};
static_assert(sizeof(BlockQ6_K) == 210);

// 9.125 bits per weight. value = scale · code. ggml's own format of activations; files do not hold
// weights in it. The encoder gives the same bytes as ggml's quantize_row_q8_K_ref.
struct BlockQ8_K {
  static constexpr int kValues = 256;
  float scale;
  std::int8_t codes[256];
  std::int16_t sums[16];  // of the codes of 16 values each; decoding does not need them

  void decode(float* out) const;
  static BlockQ8_K encode(const float* values);
};
static_assert(sizeof(BlockQ8_K) == 292);

}  // namespace espalier::pack
