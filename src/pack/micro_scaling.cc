#include "pack/micro_scaling.h"

#include <algorithm>
#include <bit>

namespace espalier::pack {
namespace {

// E2M1 doubled, so that all are integers; scales are halved to match. Minus zero reads as zero.
constexpr float kDoubledE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(exponent − 128), subnormal for the two lowest.
float half_e8m0(std::uint8_t exponent) {
  return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent
                                           : static_cast<std::uint32_t>(exponent - 1) << 23);
}

// Half the value of an unsigned E4M3.
float half_e4m3(std::uint8_t code) {
  if (code == 0x7f) return 0;
  const int exponent = code >> 3 & 15;
  const auto mantissa = static_cast<float>(code & 7);
  return exponent == 0 ? std::ldexp(mantissa, -10) : std::ldexp(1 + mantissa / 8, exponent - 8);
}

// The E4M3 code of a positive number, as ggml rounds: half up, and everything from 256 on becomes
// the largest code, 448.
std::uint8_t to_e4m3(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const int exponent = static_cast<int>(bits >> 23) - 127 + 7;
  if (exponent <= 0) return static_cast<std::uint8_t>(std::min(7.0f, value * 512.0f + 0.5f));
  const std::uint32_t mantissa = ((bits >> 20 & 7) + (bits >> 19 & 1));
  const std::uint32_t code = static_cast<std::uint32_t>(exponent) * 8 + mantissa;
  return static_cast<std::uint8_t>(code >= 15 * 8 ? 0x7e : code);
}

// The code whose value at this scale is nearest; the first of equals.
int nearest_e2m1(float value, float half_scale) {
  int best = 0;
  float best_error = std::fabs(value);
  for (int code = 1; code < 16; ++code) {
    const float error = std::fabs(kDoubledE2m1[code] * half_scale - value);
    if (error < best_error) {
      best = code;
      best_error = error;
    }
  }
  return best;
}

float largest_magnitude(const float* values, int count) {
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

// A group of 2·half codes: values i and half + i share byte i.
void decode_group(const std::uint8_t* codes, int half, float half_scale, float* out) {
  for (int i = 0; i < half; ++i) {
    out[i] = half_scale * kDoubledE2m1[codes[i] & 15];
    out[i + half] = half_scale * kDoubledE2m1[codes[i] >> 4];
  }
}

void encode_group(const float* values, int half, float half_scale, std::uint8_t* codes) {
  for (int i = 0; i < half; ++i) {
    codes[i] = static_cast<std::uint8_t>(nearest_e2m1(values[i], half_scale) |
                                         nearest_e2m1(values[i + half], half_scale) << 4);
  }
}

}  // namespace

void BlockMXFP4::decode(float* out) const { decode_group(codes, 16, half_e8m0(exponent), out); }

BlockMXFP4 BlockMXFP4::encode(const float* values) {
  BlockMXFP4 block{};
  // The power of two of the largest value, less that of the largest code (4 … 7.99 round to 4, 6).
  const float largest = largest_magnitude(values, kValues);
  if (largest > 0) {
    const float power = std::floor(std::log2(largest)) - 2 + 127;
    block.exponent = static_cast<std::uint8_t>(std::max(power, 0.0f));
  }
  encode_group(values, 16, half_e8m0(block.exponent), block.codes);
  return block;
}

void BlockNVFP4::decode(float* out) const {
  for (int g = 0; g < 4; ++g) decode_group(codes + 8 * g, 8, half_e4m3(scales[g]), out + 16 * g);
}

BlockNVFP4 BlockNVFP4::encode(const float* values) {
  BlockNVFP4 block{};
  for (int g = 0; g < 4; ++g) {
    const float* group = values + 16 * g;
    block.scales[g] = to_e4m3(std::min(448.0f, largest_magnitude(group, 16) / 6.0f));
    encode_group(group, 8, half_e4m3(block.scales[g]), block.codes + 8 * g);
  }
  return block;
}

}  // namespace espalier::pack
