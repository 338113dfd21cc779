// GGUF's first quantized types, Q4_0 to Q8_0: 32 values of a row share one half-precision scale
// (and an offset in the _1 types). Layout as in ggml's block_q4_0 … block_q8_0; the encoders give
// the same bytes as ggml's quantize_row_*_ref.
#pragma once

#include "base/half.h"
#include "pack/block_codec.h"

namespace espalier::pack {

// Puts 32 codes into the nibbles of a block and, where it has them (not null), the bits above,
// which have to be zero before.
void store_block_codes(const std::uint8_t* from, std::uint8_t* codes, std::uint8_t* high);

// 4.5 bits per weight. value = scale · (code − 8), code 0 … 15.
struct BlockQ4_0 {
  static constexpr int kValues = 32;
  std::uint16_t scale;     // F16
  std::uint8_t codes[16];  // low nibbles are values 0 … 15, high nibbles values 16 … 31

  void decode(float* out) const;
  static BlockQ4_0 encode(const float* values);
};
static_assert(sizeof(BlockQ4_0) == 18);

// 5 bits per weight. value = scale · code + minimum, code 0 … 15.
struct BlockQ4_1 {
  static constexpr int kValues = 32;
  std::uint16_t scale;     // F16
  std::uint16_t minimum;   // F16
  std::uint8_t codes[16];  // as in Q4_0

  void decode(float* out) const;
  static BlockQ4_1 encode(const float* values);
};
static_assert(sizeof(BlockQ4_1) == 20);

// 5.5 bits per weight. value = scale · (code − 16), code 0 … 31.
struct BlockQ5_0 {
  static constexpr int kValues = 32;
  std::uint16_t scale;     // F16
  std::uint8_t high[4];    // bit i of this little-endian 32-bit word is bit 4 of code i
  std::uint8_t codes[16];  // bits 0 … 3, as in Q4_0

  void decode(float* out) const;
  static BlockQ5_0 encode(const float* values);
};
static_assert(sizeof(BlockQ5_0) == 22);

// 6 bits per weight. value = scale · code + minimum, code 0 … 31.
struct BlockQ5_1 {
  static constexpr int kValues = 32;
  std::uint16_t scale;     // F16
  std::uint16_t minimum;   // F16
  std::uint8_t high[4];    // as in Q5_0
  std::uint8_t codes[16];  // as in Q5_0

  void decode(float* out) const;
  static BlockQ5_1 encode(const float* values);
};
static_assert(sizeof(BlockQ5_1) == 24);

// 8.5 bits per weight. value = scale · code.
struct BlockQ8_0 {
  static constexpr int kValues = 32;
  std::uint16_t scale;    // F16
  std::int8_t codes[32];  // encoders keep to −127 … 127

  void decode(float* out) const;
  static BlockQ8_0 encode(const float* values);
};
static_assert(sizeof(BlockQ8_0) == 34);

}  // namespace espalier::pack
