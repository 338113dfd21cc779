// GGUF's types for models that were trained to hold one or two bits a weight: a scale and codes,
// nothing else. Layout as in ggml's block_q1_0, block_q2_0, block_tq1_0 and block_tq2_0; the
// encoders give the same bytes as ggml's quantize_row_*_ref.
#pragma once

#include "base/half.h"
#include "pack/block_codec.h"

namespace espalier::pack {

// 1.125 bits per weight. value = code ? scale : −scale. The encoder's scale is the mean magnitude.
struct BlockQ1_0 {
  static constexpr int kValues = 128;
  std::uint16_t scale;     // F16
  std::uint8_t codes[16];  // value i is bit i mod 8 of byte i / 8

  void decode(float* out) const;
  static BlockQ1_0 encode(const float* values);
};
static_assert(sizeof(BlockQ1_0) == 18);

// 2.25 bits per weight. value = scale · (code − 1), code 0 … 3. The encoder's scale is the largest
// magnitude, so that it never uses code 3.
struct BlockQ2_0 {
  static constexpr int kValues = 64;
  std::uint16_t scale;     // F16
  std::uint8_t codes[16];  // value i is bits 2(i mod 4), 2(i mod 4) + 1 of byte i / 4

  void decode(float* out) const;
  static BlockQ2_0 encode(const float* values);
};
static_assert(sizeof(BlockQ2_0) == 18);

// 1.6875 bits per weight. value = scale · (trit − 1), trit 0 … 2, five trits to a byte.
//
// A byte holds the base-3 number t = 81·t0 + 27·t1 + 9·t2 + 3·t3 + t4 as a fixed-point fraction of
// 256: byte = ceil(256·t / 243). Trit n is then the carry of a multiplication:
// (byte · 3^n mod 256) · 3 / 256, rounded down. (Other bytes decode by the same formula.)
struct BlockTQ1_0 {
  static constexpr int kValues = 256;
  // Trit n of byte b is value 32n + b where b < 32, 160 + 16n + (b − 32) where b < 48, and
  // 240 + 4n + (b − 48) from there on, where trit 4 is 0.
  std::uint8_t codes[52];
  std::uint16_t scale;  // F16

  void decode(float* out) const;
  static BlockTQ1_0 encode(const float* values);
};
static_assert(sizeof(BlockTQ1_0) == 54);

// 2.0625 bits per weight. value = scale · (code − 1), code 0 … 3; encoders keep to 0 … 2.
struct BlockTQ2_0 {
  static constexpr int kValues = 256;
  std::uint8_t codes[64];  // bits 2q, 2q+1 of byte 32h + l are value 128h + 32q + l
  std::uint16_t scale;     // F16

  void decode(float* out) const;
  static BlockTQ2_0 encode(const float* values);
};
static_assert(sizeof(BlockTQ2_0) == 66);

}  // namespace espalier::pack
