// GGUF's IQ formats: values come in vectors of eight or four from a table of points (IQ1 … IQ3,
// pack/iq_grids.h), or one by one from a table of unequal levels (IQ4). 256 values of a row form a
// super-block (32 in IQ4_NL). Layout as in ggml's block_iq1_s … block_iq4_xs. As for the
// K-quants (pack/k_quants.h), search() is one pass of the encoder.
//
// Signs: bit j of a sign byte says that value j of eight is negative. Where only seven bits are
// stored, they are bits 0 … 6, and bit 7 makes the number of set bits even.
#pragma once

#include "base/half.h"
#include "pack/block_codec.h"

namespace espalier::pack {

// 1.5625 bits per weight. value = (scale · (2s + 1)) · (point + shift), coordinates of points −1, 0
// and 1, shift ±0.125.
struct BlockIQ1_S {
  static constexpr int kValues = 256;
  std::uint16_t scale;   // F16
  std::uint8_t low[32];  // the low eight bits of the 11-bit index of the point of eight values
  std::uint16_t high[8];  // of 32 values: bits 3i … 3i+2 are the top of the i-th index; 12 … 14 are
                          // s; bit 15 says that the shift is −0.125

  void decode(float* out) const;
  static BlockIQ1_S search(const float* values);
};
static_assert(sizeof(BlockIQ1_S) == 50);

// 1.75 bits per weight. As IQ1_S, with s for every 16 values and the shift for every eight.
struct BlockIQ1_M {
  static constexpr int kValues = 256;
  std::uint8_t low[32];   // as in IQ1_S
  std::uint8_t high[16];  // a nibble for every eight values, low nibble first: bits 0 … 2 are the
                          // top of the index, bit 3 says that the shift is −0.125
  // Four little-endian 16-bit words of 64 values each: bits 3i … 3i+2 are s of the i-th 16. Bits
  // 12 … 15 of word i are bits 4i … 4i+3 of the scale, an F16.
  std::uint8_t scales[8];

  void decode(float* out) const;
  static BlockIQ1_M search(const float* values);
};
static_assert(sizeof(BlockIQ1_M) == 56);

// 2.0625 bits per weight. value = ± ((scale · (0.5 + s)) · 0.25) · point, with seven stored signs.
struct BlockIQ2_XXS {
  static constexpr int kValues = 256;
  std::uint16_t scale;  // F16
  // Eight bytes for 32 values: the indices of four points; then a little-endian 32-bit word with
  // the signs of the i-th eight values in bits 7i … 7i+6 and s in bits 28 … 31.
  std::uint8_t codes[64];

  void decode(float* out) const;
  static BlockIQ2_XXS search(const float* values);
};
static_assert(sizeof(BlockIQ2_XXS) == 66);

// 2.3125 bits per weight. As IQ2_XXS, with 512 points and s for every 16 values.
struct BlockIQ2_XS {
  static constexpr int kValues = 256;
  std::uint16_t scale;      // F16
  std::uint16_t codes[32];  // of eight values: bits 0 … 8 index the point, 9 … 15 are the signs
  std::uint8_t scales[8];   // s of 16 values each, low nibble first

  void decode(float* out) const;
  static BlockIQ2_XS search(const float* values);
};
static_assert(sizeof(BlockIQ2_XS) == 74);

// 2.5625 bits per weight. As IQ2_XS, with 1,024 points and all eight signs stored.
struct BlockIQ2_S {
  static constexpr int kValues = 256;
  std::uint16_t scale;     // F16
  std::uint8_t low[32];    // the low eight bits of the 10-bit index of the point of eight values
  std::uint8_t signs[32];  // of eight values each
  std::uint8_t high[8];    // the top two bits of four indices, lowest bits first
  std::uint8_t scales[8];  // as in IQ2_XS

  void decode(float* out) const;
  static BlockIQ2_S search(const float* values);
};
static_assert(sizeof(BlockIQ2_S) == 82);

// 3.0625 bits per weight. value = ± ((scale · (0.5 + s)) · 0.5) · point, with seven stored signs
// for eight values, which are two points of four.
struct BlockIQ3_XXS {
  static constexpr int kValues = 256;
  std::uint16_t scale;            // F16
  std::uint8_t codes[64];         // the index of the point of four values
  std::uint8_t signs_scales[32];  // little-endian 32-bit words as in IQ2_XXS, of 32 values each

  void decode(float* out) const;
  static BlockIQ3_XXS search(const float* values);
};
static_assert(sizeof(BlockIQ3_XXS) == 98);

// 3.4375 bits per weight. value = ± (scale · (2s + 1)) · point.
struct BlockIQ3_S {
  static constexpr int kValues = 256;
  std::uint16_t scale;     // F16
  std::uint8_t low[64];    // the low eight bits of the 9-bit index of the point of four values
  std::uint8_t high[8];    // bit i of byte b is the top bit of index 8b + i
  std::uint8_t signs[32];  // of eight values each
  std::uint8_t scales[4];  // s of 32 values each, low nibble first

  void decode(float* out) const;
  static BlockIQ3_S search(const float* values);
};
static_assert(sizeof(BlockIQ3_S) == 110);

// 4.5 bits per weight. value = scale · level[code], with the 16 levels of kIq4Levels.
struct BlockIQ4_NL {
  static constexpr int kValues = 32;
  std::uint16_t scale;     // F16
  std::uint8_t codes[16];  // low nibbles are values 0 … 15, high nibbles values 16 … 31

  void decode(float* out) const;
  static BlockIQ4_NL search(const float* values);
};
static_assert(sizeof(BlockIQ4_NL) == 18);

// 4.25 bits per weight. value = (scale · (s − 32)) · level[code], with a six-bit s for 32 values.
struct BlockIQ4_XS {
  static constexpr int kValues = 256;
  std::uint16_t scale;         // F16
  std::uint16_t scales_high;   // bits 2g, 2g+1 are bits 4 and 5 of s of group g
  std::uint8_t scales_low[4];  // bits 0 … 3 of s, low nibble first
  std::uint8_t codes[128];     // 16 bytes a group, as in IQ4_NL

  void decode(float* out) const;
  static BlockIQ4_XS search(const float* values);
};
static_assert(sizeof(BlockIQ4_XS) == 136);

}  // namespace espalier::pack
