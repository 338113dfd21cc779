// Unquantized values: a "block" is one number.
#pragma once

#include "base/half.h"
#include "pack/block_codec.h"

namespace espalier::pack {

struct PlainF32 {
  static constexpr int kValues = 1;
  float value;

  void decode(float* out) const { *out = value; }
  static PlainF32 encode(const float* values) { return {*values}; }
};

struct PlainF16 {
  static constexpr int kValues = 1;
  std::uint16_t bits;  // IEEE binary16

  void decode(float* out) const { *out = half_to_float(bits); }
  static PlainF16 encode(const float* values) { return {float_to_half(*values)}; }
};

struct PlainBF16 {
  static constexpr int kValues = 1;
  std::uint16_t bits;  // the top half of a float

  void decode(float* out) const { *out = bfloat_to_float(bits); }
  static PlainBF16 encode(const float* values) { return {float_to_bfloat(*values)}; }
};

}  // namespace espalier::pack
