#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace espalier {
namespace {

// The value of half bits by the definition of IEEE 754.
double half_value(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Half, EveryValueConvertsAndComesBack) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    if ((half & 0x7fff) > 0x7c00) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value)))) << bits;
      continue;
    }
    if ((half & 0x7fff) < 0x7c00) {
      EXPECT_EQ(value, half_value(half)) << bits;
    }
    EXPECT_EQ(float_to_half(value), half) << bits;
  }
  EXPECT_EQ(half_to_float(0xfc00), -std::numeric_limits<float>::infinity());
}

TEST(Half, RoundsToNearestTiesToEven) {
  for (std::uint16_t half = 0; half < 0x7bff; ++half) {
    const double low = half_value(half);
    const double high = half_value(static_cast<std::uint16_t>(half + 1));
    const auto middle = static_cast<float>((low + high) / 2);  // exact in a float
    const std::uint16_t even = half % 2 == 0 ? half : half + 1;
    EXPECT_EQ(float_to_half(middle), even);
    EXPECT_EQ(float_to_half(std::nextafter(middle, 0.f)), half);
    EXPECT_EQ(float_to_half(std::nextafter(middle, 1e9f)), half + 1);
  }
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e30f), 0xfc00);
}

TEST(Bfloat, RoundsToNearestTiesToEven) {
  EXPECT_EQ(float_to_bfloat(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bfloat(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(float_to_bfloat(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(float_to_bfloat(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(float_to_bfloat(std::bit_cast<float>(0x7f7fffffu)), 0x7f80) << "rounds to infinity";
  EXPECT_TRUE(std::isnan(bfloat_to_float(float_to_bfloat(std::bit_cast<float>(0x7f800001u)))));
  for (unsigned bits = 0; bits < 0x7f80; ++bits) {
    EXPECT_EQ(float_to_bfloat(bfloat_to_float(static_cast<std::uint16_t>(bits))), bits);
  }
}

}  // namespace
}  // namespace espalier
