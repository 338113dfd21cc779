#include "pack/k_quants.h"

#include <algorithm>

namespace espalier::pack {
namespace {

// The two-bit field of value v in the layout that Q2_K and Q3_K share.
int two_bits(const std::uint8_t* codes, int v) {
  return codes[v / 128 * 32 + v % 32] >> (v % 128 / 32 * 2) & 3;
}

// The nibble of value v in the layout that Q4_K and Q5_K share.
int four_bits(const std::uint8_t* codes, int v) {
  return codes[v / 64 * 32 + v % 32] >> (v % 64 / 32 * 4) & 15;
}

// The bit that Q3_K and Q5_K keep apart from the others.
int high_bit(const std::uint8_t* high, int v) { return high[v % 32] >> (v / 32) & 1; }

// Q3_K's scale code of group g, 0 … 63.
int q3_scale(const std::uint8_t* scales, int g) {
  return (scales[g % 8] >> (g / 8 * 4) & 15) | (scales[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
}

// Q4_K's and Q5_K's scale and minimum codes of group g.
struct GroupCodes {
  int scale;
  int minimum;
};
GroupCodes q4_group(const std::uint8_t* scales, int g) {
  if (g < 4) return {scales[g] & 63, scales[g + 4] & 63};
  return {(scales[g + 4] & 15) | scales[g - 4] >> 6 << 4, scales[g + 4] >> 4 | scales[g] >> 6 << 4};
}

}  // namespace

void BlockQ2_K::decode(float* out) const {
  const float d = half_to_float(scale);
  const float m = half_to_float(minimum);
  for (int v = 0; v < kValues; ++v) {
    const float group_scale = d * static_cast<float>(scales[v / 16] & 15);
    const float group_minimum = m * static_cast<float>(scales[v / 16] >> 4);
    out[v] = group_scale * static_cast<float>(two_bits(codes, v)) - group_minimum;
  }
}

void BlockQ3_K::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int v = 0; v < kValues; ++v) {
    const float group_scale = d * static_cast<float>(q3_scale(scales, v / 16) - 32);
    const int code = two_bits(low, v) | high_bit(high, v) << 2;
    out[v] = group_scale * static_cast<float>(code - 4);
  }
}

void BlockQ4_K::decode(float* out) const {
  const float d = half_to_float(scale);
  const float m = half_to_float(minimum);
  for (int v = 0; v < kValues; ++v) {
    const GroupCodes group = q4_group(scales, v / 32);
    const float group_scale = d * static_cast<float>(group.scale);
    const float group_minimum = m * static_cast<float>(group.minimum);
    out[v] = group_scale * static_cast<float>(four_bits(codes, v)) - group_minimum;
  }
}

void BlockQ5_K::decode(float* out) const {
  const float d = half_to_float(scale);
  const float m = half_to_float(minimum);
  for (int v = 0; v < kValues; ++v) {
    const GroupCodes group = q4_group(scales, v / 32);
    const float group_scale = d * static_cast<float>(group.scale);
    const float group_minimum = m * static_cast<float>(group.minimum);
    const int code = four_bits(codes, v) | high_bit(high, v) << 4;
    out[v] = group_scale * static_cast<float>(code) - group_minimum;
  }
}

void BlockQ6_K::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int v = 0; v < kValues; ++v) {
    const int half = v / 128;
    const int quarter = v % 128 / 32;
    const int l = v % 32;
    const int low_bits = low[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
    const int high_bits = high[half * 32 + l] >> (2 * quarter) & 3;
    const float group_scale = d * static_cast<float>(scales[v / 16]);
    out[v] = group_scale * static_cast<float>((low_bits | high_bits << 4) - 32);
  }
}

void BlockQ8_K::decode(float* out) const {
  for (int v = 0; v < kValues; ++v) out[v] = scale * static_cast<float>(codes[v]);
}

BlockQ8_K BlockQ8_K::encode(const float* values) {
  BlockQ8_K block{};
  const float extreme = *std::max_element(
      values, values + kValues, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  const float inverse_scale = -127.0f / extreme;
  if (!std::isfinite(inverse_scale)) return block;  // all values are zero, or subnormal
  block.scale = 1.0f / inverse_scale;
  for (int v = 0; v < kValues; ++v) {
    const float code = std::nearbyint(inverse_scale * values[v]);  // ties to even
    block.codes[v] = static_cast<std::int8_t>(std::min(127.0f, code));
    block.sums[v / 16] = static_cast<std::int16_t>(block.sums[v / 16] + block.codes[v]);
  }
  return block;
}

}  // namespace espalier::pack
