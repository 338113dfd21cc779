#include "pack/legacy_quants.h"

#include <algorithm>

namespace espalier::pack {
namespace {

// 1/scale, or 0 for a scale so small that it has no finite inverse: its half is zero anyway.
float inverse(float scale) {
  const float inverted = 1.0f / scale;
  return std::isfinite(inverted) ? inverted : 0.0f;
}

// The value of largest magnitude among 32, the first one of equals.
float extreme_of(const float* values) {
  return *std::max_element(values, values + 32,
                           [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

// The code of value i of 32 in an array of nibbles, and the bit above it.
int nibble(const std::uint8_t* codes, int i) { return codes[i % 16] >> (i / 16 * 4) & 15; }
int high_bit(const std::uint8_t* high, int i) { return (high[i / 8] >> i % 8 & 1) << 4; }

// The symmetric types: the extreme value gets the code of −center exactly, so codes reach one step
// further on its side. Returns the scale.
std::uint16_t encode_symmetric(const float* values, int center, std::uint8_t* codes) {
  const float scale = extreme_of(values) / static_cast<float>(-center);
  const float inverse_scale = inverse(scale);
  for (int i = 0; i < 32; ++i) {
    const float shifted = values[i] * inverse_scale + (static_cast<float>(center) + 0.5f);
    codes[i] = static_cast<std::uint8_t>(std::min(2 * center - 1, static_cast<int>(shifted)));
  }
  return float_to_half(scale);
}

struct ScaleAndMinimum {
  std::uint16_t scale;
  std::uint16_t minimum;
};

// The types with a minimum: codes 0 … top span the range of the values.
ScaleAndMinimum encode_range(const float* values, int top, std::uint8_t* codes) {
  const auto [least, greatest] = std::minmax_element(values, values + 32);
  const float minimum = *least;
  const float scale = (*greatest - minimum) / static_cast<float>(top);
  if (std::isinf(scale)) return {float_to_half(scale), float_to_half(minimum)};
  const float inverse_scale = inverse(scale);
  for (int i = 0; i < 32; ++i) {
    const float shifted = (values[i] - minimum) * inverse_scale + 0.5f;
    codes[i] = static_cast<std::uint8_t>(std::min(top, static_cast<int>(shifted)));
  }
  return {float_to_half(scale), float_to_half(minimum)};
}

}  // namespace

void store_block_codes(const std::uint8_t* from, std::uint8_t* codes, std::uint8_t* high) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<std::uint8_t>((from[i] & 15) | (from[i + 16] & 15) << 4);
  }
  if (high == nullptr) return;
  for (int i = 0; i < 32; ++i) {
    high[i / 8] = static_cast<std::uint8_t>(high[i / 8] | (from[i] >> 4) << i % 8);
  }
}

void BlockQ4_0::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(codes, i) - 8);
}

BlockQ4_0 BlockQ4_0::encode(const float* values) {
  BlockQ4_0 block{};
  std::uint8_t codes[32];
  block.scale = encode_symmetric(values, 8, codes);
  store_block_codes(codes, block.codes, nullptr);
  return block;
}

void BlockQ4_1::decode(float* out) const {
  const float d = half_to_float(scale);
  const float m = half_to_float(minimum);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(codes, i)) + m;
}

BlockQ4_1 BlockQ4_1::encode(const float* values) {
  BlockQ4_1 block{};
  std::uint8_t codes[32] = {};
  const auto [scale, minimum] = encode_range(values, 15, codes);
  block.scale = scale;
  block.minimum = minimum;
  store_block_codes(codes, block.codes, nullptr);
  return block;
}

void BlockQ5_0::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>((nibble(codes, i) | high_bit(high, i)) - 16);
  }
}

BlockQ5_0 BlockQ5_0::encode(const float* values) {
  BlockQ5_0 block{};
  std::uint8_t codes[32];
  block.scale = encode_symmetric(values, 16, codes);
  store_block_codes(codes, block.codes, block.high);
  return block;
}

void BlockQ5_1::decode(float* out) const {
  const float d = half_to_float(scale);
  const float m = half_to_float(minimum);
  for (int i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(nibble(codes, i) | high_bit(high, i)) + m;
  }
}

BlockQ5_1 BlockQ5_1::encode(const float* values) {
  BlockQ5_1 block{};
  std::uint8_t codes[32] = {};
  const auto [scale, minimum] = encode_range(values, 31, codes);
  block.scale = scale;
  block.minimum = minimum;
  store_block_codes(codes, block.codes, block.high);
  return block;
}

void BlockQ8_0::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(codes[i]);
}

BlockQ8_0 BlockQ8_0::encode(const float* values) {
  BlockQ8_0 block{};
  const float d = std::fabs(extreme_of(values)) / 127.0f;
  const float inverse_scale = inverse(d);
  block.scale = float_to_half(d);
  for (int i = 0; i < 32; ++i) {
    block.codes[i] = static_cast<std::int8_t>(std::round(values[i] * inverse_scale));
  }
  return block;
}

}  // namespace espalier::pack
