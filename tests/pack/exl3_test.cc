// EXL3 against what exllamav3 itself makes of it: tests/data/formats/exl3.safetensors, made by
// tests/data/cut_exl3_fixtures.py.
#include "pack/exl3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "pack/hadamard.h"
#include "support/fixture.h"

namespace espalier::pack {
namespace {

using test::Fixture;
using ::testing::HasSubstr;

const Fixture& fixture() {
  static const Fixture fixture("formats/exl3.safetensors");
  return fixture;
}

// The formats whose names begin with any of the prefixes.
std::vector<const Format*> formats_called(std::initializer_list<std::string_view> prefixes) {
  std::vector<const Format*> found;
  for (const Format& format : formats()) {
    for (const std::string_view prefix : prefixes) {
      if (format.name.substr(0, prefix.size()) == prefix) found.push_back(&format);
    }
  }
  return found;
}

// "EXL3-MUL1-2.5" is case mul1.k2.5 of the fixture.
std::string case_of(const Format& format) {
  std::string name;
  for (const char c : format.name.substr(5)) {
    name += c == '-' ? std::string(".k") : std::string(1, static_cast<char>(std::tolower(c)));
  }
  return name;
}

std::string test_name(const ::testing::TestParamInfo<const Format*>& test) {
  std::string name(test.param->name);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

std::vector<std::byte> halves(std::size_t count, std::uint16_t first) {
  std::vector<std::byte> bytes(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    // Numbers of either sign between 0.5 and 1.
    const auto bits =
        static_cast<std::uint16_t>(0x3800 | ((first + i * 37) & 0x3ff) | (i % 3 == 0) << 15);
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  return bytes;
}

double relative_distance(std::span<const double> a, std::span<const double> b) {
  double distance = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    distance += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(distance / size);
}

// y [x.size() / cols, rows] as the rotations and the inner weights define it; the sums in double.
std::vector<double> product(const Matrix& matrix, std::span<const float> x) {
  const Matrix inner = exl3_inner(matrix);
  std::vector<float> weights(inner.rows * inner.cols);
  decode_rows(inner, 0, inner.rows, weights.data());
  std::vector<float> rotated(inner.cols);
  std::vector<float> y(inner.rows);
  std::vector<double> all;
  for (std::size_t i = 0; i < x.size(); i += matrix.cols) {
    exl3_rotate_input(matrix, x.data() + i, rotated.data());
    for (std::size_t n = 0; n < inner.rows; ++n) {
      double sum = 0;
      for (std::size_t k = 0; k < inner.cols; ++k) {
        sum += static_cast<double>(rotated[k]) * weights[n * inner.cols + k];
      }
      y[n] = static_cast<float>(sum);
    }
    exl3_rotate_output(matrix, y.data());
    all.insert(all.end(), y.begin(), y.begin() + static_cast<std::ptrdiff_t>(matrix.rows));
  }
  return all;
}

// The same through the dense matrix.
std::vector<double> dense_product(const Matrix& matrix, std::span<const float> x) {
  std::vector<float> weights(matrix.rows * matrix.cols);
  dequantize_rows(matrix, 0, matrix.rows, weights.data());
  std::vector<double> all;
  for (std::size_t i = 0; i < x.size(); i += matrix.cols) {
    for (std::size_t n = 0; n < matrix.rows; ++n) {
      double sum = 0;
      for (std::size_t k = 0; k < matrix.cols; ++k) {
        sum += static_cast<double>(x[i + k]) * weights[n * matrix.cols + k];
      }
      all.push_back(sum);
    }
  }
  return all;
}

// --- Weight matrices -----------------------------------------------------------------------------

class Exl3Weights : public ::testing::TestWithParam<const Format*> {
 protected:
  const Format& format() const { return *GetParam(); }
  Bytes trellis() const { return fixture().get<std::byte>(case_of(format()) + ".trellis"); }
};

INSTANTIATE_TEST_SUITE_P(
    All, Exl3Weights, ::testing::ValuesIn(formats_called({"EXL3-3INST", "EXL3-MCG", "EXL3-MUL1"})),
    test_name);

TEST_P(Exl3Weights, DecodesBitForBit) {
  const auto expected = fixture().get<std::uint16_t>(case_of(format()) + ".inner");
  const std::vector<std::byte> scales = halves(128, 0);
  const auto matrix = exl3_matrix(format(), 128, 128, trellis(), scales, scales);
  ASSERT_TRUE(matrix) << matrix.error().message;
  std::vector<float> values(128 * 128);
  decode_rows(*matrix, 0, 128, values.data());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t input = i / 128;
    const std::size_t output = i % 128;
    ASSERT_EQ(float_to_half(values[output * 128 + input]), expected[i])
        << "input " << input << ", output " << output;
    ASSERT_EQ(half_to_float(expected[i]), values[output * 128 + input]);
  }
}

TEST_P(Exl3Weights, DecodesRowsFromTheMiddle) {
  const std::vector<std::byte> scales = halves(128, 0);
  // 100 × 90 of the 128 × 128 that are stored.
  const auto matrix = exl3_matrix(format(), 100, 90, trellis(), scales, scales);
  ASSERT_TRUE(matrix) << matrix.error().message;
  for (const auto rows : {decode_rows, dequantize_rows}) {
    std::vector<float> all(100 * 90);
    rows(*matrix, 0, 100, all.data());
    std::vector<float> some(41 * 90);
    rows(*matrix, 59, 41, some.data());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 59 * 90));
  }
}

TEST_P(Exl3Weights, PaddingTakesPartInTheRotations) {
  const std::vector<std::byte> suh = halves(128, 5);
  const std::vector<std::byte> svh = halves(128, 11);
  const auto padded = exl3_matrix(format(), 100, 90, trellis(), suh, svh);
  const auto whole = exl3_matrix(format(), 128, 128, trellis(), suh, svh);
  ASSERT_TRUE(padded && whole);
  std::vector<float> x(128, 0.0f);
  for (std::size_t k = 0; k < 90; ++k) x[k] = std::sin(static_cast<float>(k));
  std::vector<double> y = product(*whole, x);
  y.resize(100);
  const std::span<const float> logical = std::span(x).first(90);
  EXPECT_EQ(product(*padded, logical), y);
  EXPECT_LT(relative_distance(dense_product(*padded, logical), y), 1e-6);
}

TEST_P(Exl3Weights, MultipliesAsTheLibraryDoes) {
  const std::string name = case_of(format());
  if (!fixture().has(name + ".y")) return;  // products are kept for some of the formats
  const auto matrix =
      exl3_matrix(format(), 128, 256, fixture().get<std::byte>(name + ".product.trellis"),
                  fixture().get<std::byte>(name + ".suh"), fixture().get<std::byte>(name + ".svh"));
  ASSERT_TRUE(matrix) << matrix.error().message;
  std::vector<float> x;
  for (const std::uint16_t half : fixture().get<std::uint16_t>(name + ".x")) {
    x.push_back(half_to_float(half));
  }
  const std::vector<double> y = product(*matrix, x);
  const auto expected = fixture().get<double>(name + ".y");
  ASSERT_EQ(y.size(), expected.size());
  EXPECT_LT(relative_distance(y, expected), 1e-6);
  EXPECT_LT(relative_distance(dense_product(*matrix, x), expected), 1e-6);
  for (const std::size_t rows : {1u, 4u, 17u}) {  // half-precision kernels
    const auto kernel = fixture().get<float>(name + ".y" + std::to_string(rows));
    const std::vector<double> theirs(kernel.begin(), kernel.end());
    EXPECT_LT(relative_distance(theirs, std::span(y).first(rows * 128)), 5e-4) << rows << " rows";
  }
}

TEST(Exl3, KeepsProductsOfSixFormats) {
  int products = 0;
  for (const Format* format : formats_called({"EXL3-"}))
    products += fixture().has(case_of(*format) + ".y");
  EXPECT_EQ(products, 6);
}

TEST(Exl3, FindsFormatsByTheWidthOfTheTrellis) {
  EXPECT_EQ(find_exl3_format(Codebook::k3Inst, 16), find_format("EXL3-3INST-1"));
  EXPECT_EQ(find_exl3_format(Codebook::kMcg, 128), find_format("EXL3-MCG-8"));
  EXPECT_EQ(find_exl3_format(Codebook::kMul1, 24), find_format("EXL3-MUL1-1.5"));
  EXPECT_EQ(find_exl3_format(Codebook::kMul1, 56), find_format("EXL3-MUL1-3.5"));
  EXPECT_EQ(find_exl3_format(Codebook::k3Inst, 24), nullptr);
  EXPECT_EQ(find_exl3_format(Codebook::kMul1, 72), nullptr);
  EXPECT_EQ(find_exl3_format(Codebook::kMul1, 0), nullptr);
  EXPECT_EQ(find_exl3_format(Codebook::kMul1, 144), nullptr);
}

TEST(Exl3, RefusesPartsOfTheWrongSize) {
  const Format& format = *find_format("EXL3-MUL1-2.5");
  const std::vector<std::byte> trellis(2 * 8 * 8 * 80);
  const std::vector<std::byte> scales(512);
  const auto message = [&](std::uint64_t rows, std::uint64_t cols, std::size_t suh,
                           std::size_t svh) {
    const auto made = exl3_matrix(format, rows, cols, trellis, Bytes(scales).first(suh),
                                  Bytes(scales).first(svh));
    return made ? "" : made.error().message;
  };
  EXPECT_EQ(message(128, 256, 512, 256), "");
  EXPECT_EQ(message(1, 129, 512, 256), "");
  EXPECT_THAT(message(129, 256, 512, 512),
              HasSubstr("the trellis has 10240 bytes, expected 20480"));
  EXPECT_THAT(message(128, 256, 256, 256), HasSubstr("(suh) has 256 bytes, expected 512"));
  EXPECT_THAT(message(128, 256, 512, 512), HasSubstr("(svh) has 512 bytes, expected 256"));
  EXPECT_THAT(message(1ull << 63, 256, 512, 256), HasSubstr("not the size of a matrix"));
  EXPECT_THAT(message(0, 256, 512, 256), HasSubstr("not the size of a matrix"));
  EXPECT_THAT(message(~0ull, ~0ull, 512, 256), HasSubstr("not the size of a matrix"));
  EXPECT_THAT(message(1ull << 40, 1ull << 40, 512, 256), HasSubstr("not the size of a matrix"));
}

TEST(Exl3, OlderSignBitmapsBecomeScales) {
  const std::uint16_t words[2] = {0x8001, 0x0002};
  const std::vector<std::byte> scales = exl3_signs(std::as_bytes(std::span(words)));
  ASSERT_EQ(scales.size(), 64u);
  for (std::size_t i = 0; i < 32; ++i) {
    const bool negative = i == 0 || i == 15 || i == 17;
    EXPECT_EQ(half_to_float(load<std::uint16_t>(scales.data() + 2 * i)), negative ? -1 : 1) << i;
  }
}

TEST(Exl3, TabulatesEveryState) {
  for (const Codebook codebook : {Codebook::k3Inst, Codebook::kMcg, Codebook::kMul1}) {
    double square = 0;
    for (std::uint32_t state = 0; state < 65536; ++state) {
      const float weight = exl3_weight(codebook, static_cast<std::uint16_t>(state));
      ASSERT_EQ(exl3_weights(codebook)[state], weight);
      square += static_cast<double>(weight) * weight / 65536;
    }
    // All three are made to look like normal numbers of about the same spread.
    EXPECT_NEAR(std::sqrt(square), codebook == Codebook::kMul1 ? 1.0 : 1.24, 0.01);
  }
}

// --- Tables --------------------------------------------------------------------------------------

class Exl3Embedding : public ::testing::TestWithParam<const Format*> {};
INSTANTIATE_TEST_SUITE_P(All, Exl3Embedding, ::testing::ValuesIn(formats_called({"EXL3-EMB-"})),
                         test_name);

TEST_P(Exl3Embedding, DecodesBitForBit) {
  const std::string name = "embed.k" + std::string(GetParam()->name.substr(9));
  const auto trellis = fixture().get<std::byte>(name + ".trellis");
  const auto signs = fixture().get<std::byte>(name + ".signs");
  const auto expected = fixture().get<std::uint16_t>(name + ".out");
  const auto matrix = exl3_embedding_matrix(*GetParam(), 6, 700, trellis, signs);
  ASSERT_TRUE(matrix) << matrix.error().message;
  std::vector<float> values(6 * 700);
  decode_rows(*matrix, 0, 6, values.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], half_to_float(expected[i]))
        << "value " << i % 700 << " of row " << i / 700;
  }
  std::vector<float> row(700);
  decode_rows(*matrix, 4, 1, row.data());
  EXPECT_TRUE(std::equal(row.begin(), row.end(), values.begin() + 4 * 700));

  EXPECT_FALSE(exl3_embedding_matrix(*GetParam(), 7, 700, trellis, signs));
  EXPECT_FALSE(exl3_embedding_matrix(*GetParam(), 6, 512, trellis, signs));
  EXPECT_FALSE(exl3_embedding_matrix(*GetParam(), 6, 700, trellis, signs.first(512)));
  EXPECT_FALSE(exl3_embedding_matrix(*GetParam(), 1ull << 62, ~0ull, trellis, signs));
}

class Exl3Ngram : public ::testing::TestWithParam<const Format*> {};
INSTANTIATE_TEST_SUITE_P(All, Exl3Ngram, ::testing::ValuesIn(formats_called({"EXL3-NGRAM-"})),
                         test_name);

TEST_P(Exl3Ngram, DecodesBitForBit) {
  const std::string name = "ngram.k" + std::string(GetParam()->name.substr(11));
  const auto trellis = fixture().get<std::byte>(name + ".trellis");
  const auto bias = fixture().get<std::byte>(name + ".head_bias");
  const auto heads = fixture().get<std::int32_t>(name + ".heads");
  const auto expected = fixture().get<std::uint16_t>(name + ".out");
  // The fixture's rows are of any heads; a table has those of head 0 first, and so on.
  std::vector<std::size_t> order;
  std::vector<std::uint64_t> offsets;
  std::vector<std::byte> sorted;
  for (std::int32_t head = 0; head < 4; ++head) {
    offsets.push_back(order.size());
    for (std::size_t row = 0; row < heads.size(); ++row) {
      if (heads[row] == head) order.push_back(row);
    }
  }
  for (const std::size_t row : order) {
    const Bytes ring = trellis.subspan(row * GetParam()->block_bytes, GetParam()->block_bytes);
    sorted.insert(sorted.end(), ring.begin(), ring.end());
  }
  const Bytes offset_bytes = std::as_bytes(std::span(offsets));
  const auto matrix = exl3_ngram_matrix(*GetParam(), heads.size(), sorted, bias, offset_bytes);
  ASSERT_TRUE(matrix) << matrix.error().message;
  std::vector<float> values(heads.size() * 160);
  for (std::size_t row = 0; row < heads.size(); ++row) {  // rows by themselves find their head too
    decode_rows(*matrix, row, 1, values.data() + row * 160);
    for (std::size_t i = 0; i < 160; ++i) {
      ASSERT_EQ(values[row * 160 + i], half_to_float(expected[order[row] * 160 + i]))
          << "value " << i << " of row " << row;
    }
  }
  std::vector<float> at_once(values.size());
  decode_rows(*matrix, 0, heads.size(), at_once.data());
  EXPECT_EQ(at_once, values);
}

TEST(Exl3Ngram, RefusesHeadsThatDoNotFit) {
  const Format& format = *find_format("EXL3-NGRAM-1");
  const std::vector<std::byte> trellis(10 * 22);
  const std::vector<std::byte> bias(2 * 320);
  const auto message = [&](std::uint64_t rows, std::vector<std::int64_t> offsets) {
    const auto made =
        exl3_ngram_matrix(format, rows, trellis, bias, std::as_bytes(std::span(offsets)));
    return made ? "" : made.error().message;
  };
  EXPECT_EQ(message(10, {0, 4}), "");
  EXPECT_THAT(message(9, {0, 4}), HasSubstr("trellis"));
  EXPECT_THAT(message(10, {0}), HasSubstr("head bias"));
  EXPECT_THAT(message(10, {1, 4}), HasSubstr("head 0 begins at row 1"));
  EXPECT_THAT(message(10, {0, 11}), HasSubstr("head 1 begins at row 11, expected 0 … 10"));
  EXPECT_THAT(message(10, {0, -1}), HasSubstr("head 1"));
  EXPECT_TRUE(exl3_ngram_matrix(format, 10, trellis, {}, {}));
}

// --- Rotations -----------------------------------------------------------------------------------

TEST(Hadamard, IsTheSylvesterMatrix) {
  for (int k = 0; k < 128; ++k) {
    float values[128] = {};
    values[k] = 1;
    hadamard_128(values);
    for (int n = 0; n < 128; ++n) {
      const int sign = std::popcount(static_cast<unsigned>(k & n)) % 2 == 0 ? 1 : -1;
      ASSERT_EQ(values[n], static_cast<float>(sign / std::sqrt(128.0))) << k << ", " << n;
    }
    hadamard_128(values);
    for (int n = 0; n < 128; ++n) ASSERT_NEAR(values[n], n == k ? 1 : 0, 1e-6);
  }
}

}  // namespace
}  // namespace espalier::pack
