#include "pack/iq_quants.h"

#include <bit>

#include "pack/iq_grids.h"

namespace espalier::pack {
namespace {

// Nibble i of an array of bytes, low nibbles first.
int nibble(const std::uint8_t* bytes, int i) { return bytes[i / 2] >> (i % 2 * 4) & 15; }

// The sign byte of which seven bits are stored: an even number of bits is set.
std::uint8_t even_signs(std::uint32_t seven_bits) {
  seven_bits &= 127;
  return static_cast<std::uint8_t>(seven_bits | (std::popcount(seven_bits) & 1u) << 7);
}

// Eight values of IQ1.
void decode_iq1(int index, float group_scale, bool negative_shift, float* out) {
  const float shift = negative_shift ? -kIq1Shift : kIq1Shift;
  for (int j = 0; j < 8; ++j) {
    const int digit = kIq1Grid[index] >> (2 * j) & 3;
    out[j] = group_scale * (static_cast<float>(digit - 1) + shift);
  }
}

// Eight values of IQ2.
void decode_iq2(std::uint16_t point, std::uint8_t signs, float group_scale, float* out) {
  for (int j = 0; j < 8; ++j) {
    const float magnitude = group_scale * static_cast<float>(kIq2Levels[point >> (2 * j) & 3]);
    out[j] = signs >> j & 1 ? -magnitude : magnitude;
  }
}

// Four values of IQ3, with the signs of the lowest four bits.
void decode_iq3(std::uint16_t point, const std::uint8_t* levels, int signs, float group_scale,
                float* out) {
  for (int j = 0; j < 4; ++j) {
    const float magnitude = group_scale * static_cast<float>(levels[point >> (3 * j) & 7]);
    out[j] = signs >> j & 1 ? -magnitude : magnitude;
  }
}

// 32 values of IQ4.
void decode_iq4(const std::uint8_t* codes, float group_scale, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = group_scale * static_cast<float>(kIq4Levels[codes[i] & 15]);
    out[i + 16] = group_scale * static_cast<float>(kIq4Levels[codes[i] >> 4]);
  }
}

// IQ2's scale of a group with scale code s.
float iq2_scale(float scale, int s) { return scale * (0.5f + static_cast<float>(s)) * 0.25f; }

// The scale of IQ1 and IQ3_S.
float odd_scale(float scale, int s) { return scale * static_cast<float>(2 * s + 1); }

// IQ1_M's scale, spread over the top nibbles of four words.
std::uint16_t iq1_m_scale(const std::uint8_t* scales) {
  int bits = 0;
  for (int i = 0; i < 4; ++i) bits |= (scales[2 * i + 1] >> 4) << (4 * i);
  return static_cast<std::uint16_t>(bits);
}

}  // namespace

void BlockIQ1_S::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int k = 0; k < 32; ++k) {
    const int word = high[k / 4];
    const int index = low[k] | (word >> (k % 4 * 3) & 7) << 8;
    decode_iq1(index, odd_scale(d, word >> 12 & 7), (word & 0x8000) != 0, out + 8 * k);
  }
}

void BlockIQ1_M::decode(float* out) const {
  const float d = half_to_float(iq1_m_scale(scales));
  for (int k = 0; k < 32; ++k) {
    const int s = load<std::uint16_t>(scales + k / 8 * 2) >> (k % 8 / 2 * 3) & 7;
    const int top = nibble(high, k);
    decode_iq1(low[k] | (top & 7) << 8, odd_scale(d, s), (top & 8) != 0, out + 8 * k);
  }
}

void BlockIQ2_XXS::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int k = 0; k < 32; ++k) {
    const std::uint8_t* group = codes + k / 4 * 8;
    const auto word = load<std::uint32_t>(group + 4);
    const float group_scale = iq2_scale(d, static_cast<int>(word >> 28));
    decode_iq2(kIq2XxsGrid[group[k % 4]], even_signs(word >> (k % 4 * 7)), group_scale,
               out + 8 * k);
  }
}

void BlockIQ2_XS::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int k = 0; k < 32; ++k) {
    decode_iq2(kIq2XsGrid[codes[k] & 511], even_signs(codes[k] >> 9),
               iq2_scale(d, nibble(scales, k / 2)), out + 8 * k);
  }
}

void BlockIQ2_S::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int k = 0; k < 32; ++k) {
    const int index = low[k] | (high[k / 4] >> (k % 4 * 2) & 3) << 8;
    decode_iq2(kIq2SGrid[index], signs[k], iq2_scale(d, nibble(scales, k / 2)), out + 8 * k);
  }
}

void BlockIQ3_XXS::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int k = 0; k < 64; ++k) {
    const auto word = load<std::uint32_t>(signs_scales + k / 8 * 4);
    const float group_scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    const int signs = even_signs(word >> (k % 8 / 2 * 7)) >> (k % 2 * 4);
    decode_iq3(kIq3XxsGrid[codes[k]], kIq3XxsLevels, signs, group_scale, out + 4 * k);
  }
}

void BlockIQ3_S::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int k = 0; k < 64; ++k) {
    const int index = low[k] | (high[k / 8] >> k % 8 & 1) << 8;
    decode_iq3(kIq3SGrid[index], kIq3SLevels, signs[k / 2] >> (k % 2 * 4),
               odd_scale(d, nibble(scales, k / 8)), out + 4 * k);
  }
}

void BlockIQ4_NL::decode(float* out) const { decode_iq4(codes, half_to_float(scale), out); }

void BlockIQ4_XS::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int g = 0; g < 8; ++g) {
    const int s = nibble(scales_low, g) | (scales_high >> (2 * g) & 3) << 4;
    decode_iq4(codes + 16 * g, d * static_cast<float>(s - 32), out + 32 * g);
  }
}

}  // namespace espalier::pack
