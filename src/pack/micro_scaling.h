// GGUF's micro-scaling types: 4-bit floats (E2M1) in small groups with an 8-bit scale. Layout as in
// ggml's block_mxfp4 and block_nvfp4; the encoders give the same bytes as ggml's
// quantize_row_*_ref. Number formats: OCP Microscaling Formats (MX) 1.0, section 5.
//
// E2M1 codes 0 … 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign (code 8 decodes to +0).
#pragma once

#include "pack/block_codec.h"

namespace espalier::pack {

// 4.25 bits per weight. value = 2^(exponent − 127) · e2m1. Exponent 255, which OCP reserves for
// NaN, is 2^128 here as in ggml: its products beyond a float's range are infinite.
struct BlockMXFP4 {
  static constexpr int kValues = 32;
  std::uint8_t exponent;   // E8M0
  std::uint8_t codes[16];  // low nibbles are values 0 … 15, high nibbles values 16 … 31

  void decode(float* out) const;
  static BlockMXFP4 encode(const float* values);
};
static_assert(sizeof(BlockMXFP4) == 17);

// 4.5 bits per weight. value = scales[value / 16] · e2m1. (A model's per-tensor scale is a tensor
// of its own in GGUF.) The encoder clips at 448 · 6.
struct BlockNVFP4 {
  static constexpr int kValues = 64;
  // E4M3 without a sign (bit 7 is ignored): bits 3 … 6 are the exponent e, 0 … 2 the mantissa m;
  // 2^(e − 7) · (1 + m/8), or 2^−9 · m where e is 0. 0x7f, NaN elsewhere, counts as 0.
  std::uint8_t scales[4];
  std::uint8_t codes[32];  // group g: byte 8g + i has value 16g + i low and 16g + 8 + i high

  void decode(float* out) const;
  static BlockNVFP4 encode(const float* values);
};
static_assert(sizeof(BlockNVFP4) == 36);

}  // namespace espalier::pack
