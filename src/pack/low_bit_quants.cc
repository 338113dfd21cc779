#include "pack/low_bit_quants.h"

#include <algorithm>

namespace espalier::pack {
namespace {

// Rounds values to multiples of their largest magnitude, which becomes the scale: trit 0, 1 or 2
// for −scale, 0, +scale.
std::uint16_t encode_trits(const float* values, int count, std::uint8_t* trits) {
  float scale = 0;
  for (int i = 0; i < count; ++i) scale = std::max(scale, std::fabs(values[i]));
  // A scale too small to have an inverse is zero as a half: all trits may be the middle one.
  const float inverse = std::isfinite(1.0f / scale) ? 1.0f / scale : 0.0f;
  for (int i = 0; i < count; ++i) {
    trits[i] = static_cast<std::uint8_t>(std::lround(values[i] * inverse) + 1);
  }
  return float_to_half(scale);
}

// Byte and trit number of value i of a TQ1_0 block.
struct TritPlace {
  int byte;
  int trit;
};
TritPlace trit_place(int i) {
  if (i < 160) return {i % 32, i / 32};
  if (i < 240) return {32 + (i - 160) % 16, (i - 160) / 16};
  return {48 + (i - 240) % 4, (i - 240) / 4};
}

constexpr int kPowersOf3[5] = {1, 3, 9, 27, 81};

}  // namespace

void BlockQ1_0::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int i = 0; i < kValues; ++i) out[i] = codes[i / 8] >> i % 8 & 1 ? d : -d;
}

BlockQ1_0 BlockQ1_0::encode(const float* values) {
  BlockQ1_0 block{};
  float sum = 0;
  for (int i = 0; i < kValues; ++i) sum += std::fabs(values[i]);
  block.scale = float_to_half(sum / kValues);
  for (int i = 0; i < kValues; ++i) {
    const int bit = values[i] >= 0 ? 1 : 0;
    block.codes[i / 8] = static_cast<std::uint8_t>(block.codes[i / 8] | bit << i % 8);
  }
  return block;
}

void BlockQ2_0::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int i = 0; i < kValues; ++i) {
    out[i] = d * static_cast<float>((codes[i / 4] >> (2 * (i % 4)) & 3) - 1);
  }
}

BlockQ2_0 BlockQ2_0::encode(const float* values) {
  BlockQ2_0 block{};
  std::uint8_t trits[kValues];
  block.scale = encode_trits(values, kValues, trits);
  for (int i = 0; i < kValues; ++i) {
    block.codes[i / 4] = static_cast<std::uint8_t>(block.codes[i / 4] | trits[i] << (2 * (i % 4)));
  }
  return block;
}

void BlockTQ1_0::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int i = 0; i < kValues; ++i) {
    const auto [byte, trit] = trit_place(i);
    out[i] = d * static_cast<float>(((codes[byte] * kPowersOf3[trit] & 255) * 3 >> 8) - 1);
  }
}

BlockTQ1_0 BlockTQ1_0::encode(const float* values) {
  BlockTQ1_0 block{};
  std::uint8_t trits[kValues];
  block.scale = encode_trits(values, kValues, trits);
  int numbers[52] = {};
  for (int i = 0; i < kValues; ++i) {
    const auto [byte, trit] = trit_place(i);
    numbers[byte] += trits[i] * kPowersOf3[4 - trit];
  }
  for (int b = 0; b < 52; ++b) {
    block.codes[b] = static_cast<std::uint8_t>((numbers[b] * 256 + 242) / 243);
  }
  return block;
}

void BlockTQ2_0::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int i = 0; i < kValues; ++i) {
    const int code = codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    out[i] = d * static_cast<float>(code - 1);
  }
}

BlockTQ2_0 BlockTQ2_0::encode(const float* values) {
  BlockTQ2_0 block{};
  std::uint8_t trits[kValues];
  block.scale = encode_trits(values, kValues, trits);
  for (int i = 0; i < kValues; ++i) {
    std::uint8_t& byte = block.codes[i / 128 * 32 + i % 32];
    byte = static_cast<std::uint8_t>(byte | trits[i] << (i % 128 / 32 * 2));
  }
  return block;
}

}  // namespace espalier::pack
