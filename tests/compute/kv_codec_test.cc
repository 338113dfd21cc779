// What the types of the cache of keys and values lose, by their definition.
#include "compute/kv_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/half.h"

namespace espalier::compute {
namespace {

std::vector<float> decoded(KvType type, const std::vector<float>& x) {
  std::vector<std::byte> bytes(kv_row_bytes(type, x.size()));
  encode_kv(type, x.data(), x.size(), bytes.data());
  std::vector<float> y(x.size());
  decode_kv(type, bytes.data(), x.size(), y.data());
  return y;
}

std::vector<float> normals(std::size_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  return x;
}

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double errors = 0;
  double squares = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    errors += std::pow(found[i] - expected[i], 2);
    squares += std::pow(expected[i], 2);
  }
  return std::sqrt(errors / squares);
}

TEST(KvCodec, FloatsAreKeptOrRounded) {
  const auto x = normals(77);
  EXPECT_EQ(decoded(KvType::kF32, x), x);
  const auto half = decoded(KvType::kF16, x);
  const auto bfloat = decoded(KvType::kBF16, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(half[i], half_to_float(float_to_half(x[i])));
    EXPECT_EQ(bfloat[i], bfloat_to_float(float_to_bfloat(x[i])));
  }
}

TEST(KvCodec, BlocksAreWithinHalfAStep) {
  for (const std::size_t dim : {1, 31, 37, 80}) {  // of which none is turned
    const auto x = normals(dim);
    const auto bytes = decoded(KvType::kQ8, x);
    for (std::size_t i = 0; i < dim; ++i) {
      const auto begin = x.begin() + i / 32 * 32;
      const auto end = x.begin() + std::min(dim, i / 32 * 32 + 32);
      const float largest = std::abs(*std::max_element(
          begin, end, [](float a, float b) { return std::abs(a) < std::abs(b); }));
      // Half a step, and what the scale's rounding moves the code by.
      EXPECT_NEAR(bytes[i], x[i], largest * (0.5f / 127 + 0x1p-11f)) << dim;
    }
  }
  const auto x = normals(4096 * 64);
  EXPECT_LT(relative_error(decoded(KvType::kQ8, x), x), 0.007);
  EXPECT_LT(relative_error(decoded(KvType::kQ4, x), x), 0.1);
}

// Keys have outliers; without turning them, they cost what is beside them its precision.
TEST(KvCodec, FourBitsSpreadAnOutlier) {
  auto x = normals(128);
  x[70] = 40;
  EXPECT_LT(relative_error(decoded(KvType::kQ4, x), x), 0.1);
  EXPECT_EQ(kv_rotation(KvType::kQ4, 128), 128u);
  EXPECT_EQ(kv_rotation(KvType::kQ4, 96), 32u);
  EXPECT_EQ(kv_rotation(KvType::kQ4, 768), 256u);
  EXPECT_EQ(kv_rotation(KvType::kQ4, 80), 0u);
  EXPECT_EQ(kv_rotation(KvType::kQ8, 64), 64u);
  EXPECT_EQ(kv_rotation(KvType::kF16, 128), 0u);
}

TEST(KvCodec, ExtremeBlocks) {
  for (const KvType type : {KvType::kQ8, KvType::kQ4}) {
    EXPECT_EQ(decoded(type, std::vector<float>(37, 0.0f)), std::vector<float>(37, 0.0f));
    for (const float y : decoded(type, std::vector<float>(37, 1e-41f))) EXPECT_NEAR(y, 0, 1e-40);
    std::vector<float> huge = normals(37);
    huge[3] = -5e5f;
    EXPECT_NEAR(decoded(type, huge)[3], -5e5, 300);
    for (const float none : {INFINITY, -INFINITY, NAN, 1e30f}) {
      std::vector<float> x = normals(64 + 5);  // no whole pieces to turn
      x[40] = none;
      const auto y = decoded(type, x);
      for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 32 == 1) << i;
    }
  }
}

}  // namespace
}  // namespace espalier::compute
