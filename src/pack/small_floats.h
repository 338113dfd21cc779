// The 4- and 8-bit floating-point numbers of the OCP Microscaling Formats specification (v1.0,
// section 5.3): E2M1 and E4M3 values, E8M0 scales.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace espalier::pack {

// E2M1: the low three bits count through these magnitudes, bit 3 is the sign.
inline constexpr float kE2M1Magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

[[nodiscard]] inline float e2m1_to_float(unsigned code) {
  const float magnitude = kE2M1Magnitudes[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// E4M3: exponent bias 7, subnormals, largest 448, no infinities; magnitude bits all set are NaN.
[[nodiscard]] inline float e4m3_to_float(std::uint8_t code) {
  const unsigned magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  // At a float's places the number is 2^120 too small; the product also normalizes subnormals.
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  return (code & 0x80) != 0 ? -value : value;
}

// Float to the nearest E4M3, ties to even; from 448 up it saturates at 448. Not for NaN.
[[nodiscard]] inline std::uint8_t float_to_e4m3(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x43e00000u) return sign | 0x7e;  // 448
  if (magnitude < 0x3c800000u) {  // below 2^-6: subnormal. Adding 2^14 aligns its last bit, 2^-9
    const float aligned = std::bit_cast<float>(magnitude) + 0x1p14f;
    return sign | static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(aligned) - 0x46800000u);
  }
  const std::uint32_t odd = magnitude >> 20 & 1u;
  const std::uint32_t rounded = magnitude - (120u << 23) + 0x7ffffu + odd;
  return sign | static_cast<std::uint8_t>(rounded >> 20);
}

// E8M0: 2^(code − 127); code 255 is NaN.
[[nodiscard]] inline float e8m0_to_float(std::uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return code == 0 ? 0x1p-127f : std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

}  // namespace espalier::pack
