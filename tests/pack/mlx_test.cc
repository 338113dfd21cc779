// MLX's formats against what MLX itself makes of them: tests/data/formats/mlx.safetensors, made by
// tests/data/make_mlx_fixtures.py.
#include "pack/mlx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/half.h"
#include "support/fixture.h"

namespace espalier::pack {
namespace {

using test::Fixture;
using ::testing::HasSubstr;

const Fixture& fixture() {
  static const Fixture fixture("formats/mlx.safetensors");
  return fixture;
}

struct Type {
  const char* name;
  ScaleType type;
};
constexpr Type kTypes[] = {
    {"f16", ScaleType::kF16}, {"bf16", ScaleType::kBF16}, {"f32", ScaleType::kF32}};

std::vector<const Format*> mlx_formats() {
  std::vector<const Format*> found;
  for (const Format& format : formats()) {
    if (format.family == Family::kMlx) found.push_back(&format);
  }
  return found;
}

using RowsFunction = void (*)(const Matrix&, std::uint64_t, std::uint64_t, float*);

std::vector<float> all_rows(const Matrix& matrix, RowsFunction rows) {
  std::vector<float> values(matrix.rows * matrix.cols);
  rows(matrix, 0, matrix.rows, values.data());
  return values;
}

std::vector<float> normal_values(std::size_t count) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

class MlxFormat : public ::testing::TestWithParam<const Format*> {
 protected:
  const Format& format() const { return *GetParam(); }
  std::string name() const { return std::string(format().name); }
  bool affine() const { return format().dequantize_rows != nullptr; }
  std::uint32_t bits() const { return format().block_bytes * 8 / format().block_values; }

  // The packed matrix of a case; the fixture's matrices have 256 columns.
  Matrix matrix(const std::string& name, ScaleType type) const {
    const auto codes = fixture().get<std::byte>(name + ".codes");
    const auto scales = fixture().get<std::byte>(name + ".scales");
    const Bytes biases = affine() ? fixture().get<std::byte>(name + ".biases") : Bytes{};
    const std::uint64_t rows = fixture().shape(name + ".codes")[0];
    auto made = mlx_matrix(format(), rows, 256, codes, scales, biases, type);
    if (!made) throw std::runtime_error(made.error().message);
    if (fixture().has(name + ".global_scale")) {
      made->global_scale = nvfp4_factor(fixture().get<float>(name + ".global_scale")[0]);
    }
    return *made;
  }

  Result<PackedMatrix> encode(std::span<const float> values, std::uint64_t rows, std::uint64_t cols,
                              ScaleType type,
                              std::optional<float> global_scale = std::nullopt) const {
    return affine() ? encode_mlx_affine(format(), values, rows, cols, type)
                    : encode_mlx_float(format(), values, rows, cols, type, global_scale);
  }

  // The cases NAME.TYPE of this format, and those with a tensor scale.
  struct Case {
    std::string name;
    Type type;
  };
  std::vector<Case> cases() const {
    std::vector<Case> found;
    for (const Type& type : kTypes) {
      const std::string base = name() + "." + type.name;
      found.push_back({base, type});
      if (fixture().has(base + ".global.codes")) found.push_back({base + ".global", type});
    }
    return found;
  }
};

INSTANTIATE_TEST_SUITE_P(All, MlxFormat, ::testing::ValuesIn(mlx_formats()), [](const auto& test) {
  std::string name(test.param->name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

template <typename Expected>
void expect_same_bits(std::span<const float> values, std::span<const Expected> expected,
                      float (*widen)(Expected)) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float wanted = widen(expected[i]);
    if (std::isnan(wanted) && std::isnan(values[i])) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(wanted))
        << "value " << i << ": " << values[i] << ", expected " << wanted;
  }
}

float same(float value) { return value; }

TEST_P(MlxFormat, DecodesRandomBitsBitForBit) {
  const Matrix packed = matrix(name() + ".random", ScaleType::kF32);
  const auto expected = fixture().get<float>(name() + ".random.decoded");
  expect_same_bits<float>(all_rows(packed, decode_rows), expected, same);
}

TEST_P(MlxFormat, DequantizesBitForBitInTheTypeOfTheScales) {
  for (const auto& [name, type] : cases()) {
    SCOPED_TRACE(name);
    const std::vector<float> values = all_rows(matrix(name, type.type), dequantize_rows);
    const std::string expected = name + ".dequantized";
    if (!affine() || type.type == ScaleType::kF32) {
      expect_same_bits<float>(values, fixture().get<float>(expected), same);
    } else {
      expect_same_bits<std::uint16_t>(
          values, fixture().get<std::uint16_t>(expected),
          type.type == ScaleType::kF16 ? half_to_float : bfloat_to_float);
    }
  }
}

// A product with float rows multiplies by what decode_rows gives, not by the dequantized matrix.
TEST_P(MlxFormat, DecodesWhatProductsMultiplyBy) {
  const auto x = fixture().get<float>("x");
  for (const auto& [name, type] : cases()) {
    if (!fixture().has(name + ".product")) continue;
    const auto expected = fixture().get<float>(name + ".product");
    const Matrix packed = matrix(name, type.type);
    const std::vector<float> weights = all_rows(packed, decode_rows);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const float* row = x.data() + i / packed.rows * packed.cols;
      const float* weight = weights.data() + i % packed.rows * packed.cols;
      double sum = 0;
      double size = 0;
      for (std::size_t k = 0; k < packed.cols; ++k) {
        sum += static_cast<double>(row[k]) * weight[k];
        size += std::abs(static_cast<double>(row[k]) * weight[k]);
      }
      EXPECT_NEAR(sum, expected[i], 2e-6 * size) << name << ", product " << i;
    }
  }
}

TEST_P(MlxFormat, EncodesTheSameBytes) {
  for (const auto& [name, type] : cases()) {
    SCOPED_TRACE(name);
    const std::string input = std::string("input.") + type.name;
    const auto values = fixture().get<float>(input);
    std::optional<float> global_scale;
    if (fixture().has(name + ".global_scale")) {
      global_scale = fixture().get<float>(name + ".global_scale")[0];
    }
    const auto packed = encode(values, fixture().shape(input)[0], 256, type.type, global_scale);
    ASSERT_TRUE(packed) << packed.error().message;
    const Matrix expected = matrix(name, type.type);
    EXPECT_TRUE(std::ranges::equal(packed->view.data, expected.data));
    EXPECT_TRUE(std::ranges::equal(packed->view.scales, expected.scales));
    EXPECT_TRUE(std::ranges::equal(packed->view.zeros, expected.zeros));
    EXPECT_EQ(packed->view.global_scale, expected.global_scale);
    EXPECT_EQ(packed->view.scale_type, affine() ? type.type : ScaleType::kF32);
  }
}

TEST_P(MlxFormat, DecodesRowsFromTheMiddle) {
  const Matrix packed = matrix(name() + ".bf16", ScaleType::kBF16);
  for (const RowsFunction rows : {RowsFunction{decode_rows}, RowsFunction{dequantize_rows}}) {
    const std::vector<float> all = all_rows(packed, rows);
    std::vector<float> some(2 * packed.cols);
    rows(packed, 1, 2, some.data());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + packed.cols));
  }
}

TEST_P(MlxFormat, KeepsTheErrorBound) {
  const std::uint32_t group = format().block_values;
  const std::vector<float> values = normal_values(7 * 384);
  const auto packed = encode(values, 7, 384, ScaleType::kF32);
  ASSERT_TRUE(packed) << packed.error().message;
  const std::vector<float> decoded = all_rows(packed->view, decode_rows);
  const float top = static_cast<float>((1u << bits()) - 1);
  for (std::size_t i = 0; i < values.size(); i += group) {
    const std::span<const float> from = std::span(values).subspan(i, group);
    const auto [low, high] = std::minmax_element(from.begin(), from.end());
    const float largest = std::max(std::abs(*low), std::abs(*high));
    for (std::size_t j = 0; j < group; ++j) {
      // Affine: half a step, and up to one more where moving zero onto a code shortens the range.
      // Microscaling: half of the widest step, 1, of a scale below 2 · largest / 6 (mxfp4); or the
      // same with a scale off by a sixteenth (nvfp4). mxfp8: half of the last of four bits.
      float bound = 1.501f * (*high - *low) / top;
      if (!affine())
        bound = bits() == 8 ? std::abs(from[j]) / 16 + largest * 0x1p-17f : largest / 3;
      EXPECT_LE(std::abs(decoded[i + j] - from[j]), bound) << "value " << i + j << ": " << from[j];
    }
  }
}

// Values on a grid come back as they were, and packing them again gives the same bytes.
TEST_P(MlxFormat, PacksWhatItDecodedToTheSameValues) {
  std::vector<float> values = normal_values(3 * 384);
  if (affine()) {
    // Codes from 0 to the highest in every group, the lowest value as the bias.
    const std::uint32_t top = (1u << bits()) - 1;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t in_group = i % format().block_values;
      const std::uint32_t code = in_group == 0   ? 0
                                 : in_group == 1 ? top
                                                 : (i * 2654435761u >> 8) % (top + 1);
      values[i] = 0.125f * (static_cast<float>(code) - static_cast<float>(top));
    }
  }
  const auto once = format().encode(format(), values, 3, 384);
  ASSERT_TRUE(once) << once.error().message;
  const std::vector<float> decoded = all_rows(once->view, decode_rows);
  if (affine()) {
    EXPECT_EQ(decoded, values);
  }
  const auto twice = format().encode(format(), decoded, 3, 384);
  ASSERT_TRUE(twice) << twice.error().message;
  EXPECT_EQ(all_rows(twice->view, decode_rows), decoded);
  if (affine() || name() == "MLX-NVFP4") {
    EXPECT_EQ(twice->data, once->data);
    EXPECT_EQ(twice->scales, once->scales);
  }
}

TEST_P(MlxFormat, RefusesWhatItCannotPack) {
  std::vector<float> values(2 * 128, 1.0f);
  EXPECT_TRUE(format().encode(format(), values, 2, 128));
  const auto message = [&](std::uint64_t rows, std::uint64_t cols) {
    const auto packed = format().encode(format(), values, rows, cols);
    return packed ? "" : packed.error().message;
  };
  EXPECT_THAT(message(3, 128), HasSubstr("256 values given for 3 rows × 128 columns"));
  EXPECT_THAT(message(1ull << 62, 128), HasSubstr("256 values given"));
  EXPECT_THAT(message(32, 8), HasSubstr("8 columns do not fill whole groups"));
  values[130] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(message(2, 128), HasSubstr("value 2 of row 1 is nan"));
  values[130] = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(message(2, 128), HasSubstr("value 2 of row 1 is -inf"));
  values[130] = std::numeric_limits<float>::max();
  EXPECT_THAT(message(2, 128), HasSubstr("of row 1 overflow"));
  values[130] = 1e6f;
  const auto packed = encode(values, 2, 128, ScaleType::kF16);
  ASSERT_FALSE(packed);
  EXPECT_THAT(packed.error().message, HasSubstr("overflow"));
}

TEST_P(MlxFormat, RefusesPartsOfTheWrongSize) {
  const std::uint32_t group = format().block_values;
  const std::vector<std::byte> codes(3 * 2 * format().block_bytes);
  const std::vector<std::byte> scales(3 * 2 * (affine() ? 2 : 1));
  const Bytes biases = affine() ? Bytes(scales) : Bytes();
  const auto make = [&](std::uint64_t rows, std::uint64_t cols, Bytes code_part, Bytes scale_part,
                        Bytes bias_part) {
    return bool{
        mlx_matrix(format(), rows, cols, code_part, scale_part, bias_part, ScaleType::kBF16)};
  };
  const Bytes all(codes);
  EXPECT_TRUE(make(3, 2 * group, codes, scales, biases));
  EXPECT_FALSE(make(2, 2 * group, codes, scales, biases));
  EXPECT_FALSE(make(3, 2 * group - 1, codes, scales, biases));
  EXPECT_FALSE(make(1ull << 62, 2 * group, codes, scales, biases));
  EXPECT_FALSE(make(3, 2 * group, all.first(all.size() - 1), scales, biases));
  EXPECT_FALSE(make(3, 2 * group, codes, Bytes(scales).first(1), biases));
  EXPECT_FALSE(make(3, 2 * group, codes, scales, affine() ? Bytes() : Bytes(scales)));
}

TEST(MlxFloats, ReservedCodesAreNaN) {
  const std::vector<std::byte> codes(32, std::byte{0x7f});
  const std::vector<std::byte> one(1, std::byte{127});
  const std::vector<std::byte> reserved(1, std::byte{255});
  float values[32];
  for (const Bytes scale : {Bytes(one), Bytes(reserved)}) {
    decode_rows(*mlx_matrix(*find_format("MLX-MXFP8"), 1, 32, codes, scale, {}, ScaleType::kF32), 0,
                1, values);
    EXPECT_TRUE(std::isnan(values[31]));
  }
  decode_rows(*mlx_matrix(*find_format("MLX-MXFP4"), 1, 32, Bytes(codes).first(16), reserved, {},
                          ScaleType::kF32),
              0, 1, values);
  EXPECT_TRUE(std::isnan(values[31]));
}

TEST(MlxFloats, EncodesTheExtremes) {
  std::vector<float> values(32, 0.0f);
  const auto decoded = [&](const char* name) {
    const Format& format = *find_format(name);
    const auto packed = format.encode(format, values, 1, 32);
    return all_rows(packed->view, decode_rows);
  };
  for (const char* name : {"MLX-MXFP4", "MLX-MXFP8", "MLX-NVFP4"}) {
    values[3] = 0;
    EXPECT_EQ(decoded(name), values) << name;
    values[3] = std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(decoded(name)[3], 0) << name;
    values[3] = -0x1.8p126f;
    EXPECT_TRUE(std::isfinite(decoded(name)[3])) << name;
  }
  EXPECT_EQ(decoded("MLX-NVFP4")[3], -6 * 448.0f);
}

TEST(MlxFloats, RefusesTensorScalesThatMeanNothing) {
  const std::vector<float> values(32, 1.0f);
  const auto packs = [&](const char* name, float scale) {
    return bool{encode_mlx_float(*find_format(name), values, 1, 32, ScaleType::kF32, scale)};
  };
  EXPECT_TRUE(packs("MLX-NVFP4", 1.0f));
  EXPECT_FALSE(packs("MLX-MXFP4", 1.0f));
  EXPECT_FALSE(packs("MLX-NVFP4", 0.0f));
  EXPECT_FALSE(packs("MLX-NVFP4", -1.0f));
  EXPECT_FALSE(packs("MLX-NVFP4", std::numeric_limits<float>::quiet_NaN()));
}

}  // namespace
}  // namespace espalier::pack
