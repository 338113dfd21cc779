#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace espalier::model {
namespace {

constexpr std::size_t kDims = 128;

std::vector<double> frequencies(double base, const RopeScaling& scaling,
                                std::span<const float> factors = {}) {
  return make_rope(kDims, base, scaling, factors).frequencies;
}

TEST(Rope, PlainFrequenciesAreAGeometricSeries) {
  const auto plain = frequencies(10000, {});
  ASSERT_EQ(plain.size(), kDims / 2);
  EXPECT_EQ(plain[0], 1);
  EXPECT_NEAR(plain[32], 0.01, 1e-15);
  EXPECT_NEAR(plain[63], std::pow(10000, -126.0 / 128), 1e-15);
}

TEST(Rope, LinearScalingDividesEveryFrequency) {
  const auto plain = frequencies(10000, {});
  const auto scaled = frequencies(10000, {.kind = RopeScalingKind::kLinear, .factor = 4});
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 4);
}

TEST(Rope, FactorsOfTheFileDivide) {
  std::vector<float> factors(kDims / 2, 1);
  factors[5] = 8;
  const auto plain = frequencies(500000, {});
  const auto scaled = frequencies(500000, {}, factors);
  EXPECT_EQ(scaled[4], plain[4]);
  EXPECT_DOUBLE_EQ(scaled[5], plain[5] / 8);
}

// Llama 3.1's own parameters; wavelengths below 8192/4 stay, above 8192/1 are stretched by 8.
TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const RopeScaling scaling = {.kind = RopeScalingKind::kLlama3,
                               .factor = 8,
                               .original_context = 8192,
                               .low_frequency_factor = 1,
                               .high_frequency_factor = 4};
  const auto plain = frequencies(500000, {});
  const auto scaled = frequencies(500000, scaling);
  int kept = 0, stretched = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * M_PI / plain[i];
    if (wavelength < 8192 / 4.0) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 8);
      ++stretched;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(scaled[i], (1 - smooth) * plain[i] / 8 + smooth * plain[i], 1e-15);
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
}

TEST(Rope, YarnStretchesLongWavesAndRaisesTheMagnitude) {
  const RopeScaling scaling = {
      .kind = RopeScalingKind::kYarn, .factor = 16, .original_context = 4096};
  const auto plain = frequencies(10000, {});
  const auto rope = make_rope(kDims, 10000, scaling, {});
  EXPECT_DOUBLE_EQ(rope.magnitude, 0.1 * std::log(16.0) + 1);
  EXPECT_DOUBLE_EQ(rope.frequencies.front(), plain.front());
  EXPECT_DOUBLE_EQ(rope.frequencies.back(), plain.back() / 16);
  // Pairs that turn 32 times and once over 4,096 positions: 20.9 and 45.02, rounded outwards.
  EXPECT_DOUBLE_EQ(rope.frequencies[20], plain[20]);
  EXPECT_LT(rope.frequencies[21], plain[21]);
  EXPECT_GT(rope.frequencies[45], plain[45] / 16);
  EXPECT_DOUBLE_EQ(rope.frequencies[46], plain[46] / 16);
}

}  // namespace
}  // namespace espalier::model
