// Every GGUF format of the table against what other implementations make of it:
// tests/data/formats/gguf.safetensors, made by tests/data/make_format_fixtures.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <random>

#include "base/half.h"
#include "pack/matrix.h"
#include "support/fixture.h"

namespace espalier::pack {
namespace {

using test::Fixture;

const Fixture& fixture() {
  static const Fixture fixture("formats/gguf.safetensors");
  return fixture;
}

std::vector<const Format*> gguf_formats() {
  std::vector<const Format*> found;
  for (const Format& format : formats()) {
    if (format.family == Family::kGguf) found.push_back(&format);
  }
  return found;
}

// The bits of a float, every NaN the same one.
std::uint32_t canonical_bits(float value) {
  return std::isnan(value) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(value);
}

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

// splitmix64 as little-endian bytes, and the digest of decoded values: as the script defines them.
std::vector<std::byte> pseudo_random_bytes(std::uint64_t seed, std::size_t count) {
  std::vector<std::byte> bytes((count + 7) / 8 * 8);
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = mix(seed += 0x9e3779b97f4a7c15ull);
    std::memcpy(bytes.data() + i, &word, 8);
  }
  bytes.resize(count);
  return bytes;
}

std::uint64_t digest(std::span<const float> values) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += mix(canonical_bits(values[i]) + (i << 32));
  return sum;
}

std::vector<float> decoded(const Matrix& matrix) {
  std::vector<float> values(matrix.rows * matrix.cols);
  decode_rows(matrix, 0, matrix.rows, values.data());
  return values;
}

double squared_error(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return sum;
}

class GgufFormat : public ::testing::TestWithParam<const Format*> {
 protected:
  const Format& format() const { return *GetParam(); }
  std::string name() const { return std::string(format().name); }
};

INSTANTIATE_TEST_SUITE_P(All, GgufFormat, ::testing::ValuesIn(gguf_formats()),
                         [](const auto& test) { return std::string(test.param->name); });

TEST_P(GgufFormat, DecodesBitForBit) {
  const auto packed = fixture().get<std::byte>(name() + ".packed");
  const auto expected = fixture().get<float>(name() + ".decoded");
  const std::uint64_t blocks = packed.size() / format().block_bytes;
  const auto matrix = block_matrix(format(), blocks, format().block_values, packed);
  ASSERT_TRUE(matrix) << matrix.error().message;
  const std::vector<float> values = decoded(*matrix);
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(canonical_bits(values[i]), canonical_bits(expected[i]))
        << "value " << i % format().block_values << " of block " << i / format().block_values
        << ": " << values[i] << ", expected " << expected[i];
  }
}

TEST_P(GgufFormat, DecodesManyBlocksToTheSameDigest) {
  const auto expected = fixture().get<std::uint64_t>(name() + ".digest");
  const std::uint64_t blocks = expected[0];
  const auto bytes = pseudo_random_bytes(format().ggml_type, blocks * format().block_bytes);
  const auto matrix = block_matrix(format(), 1, blocks * format().block_values, bytes);
  ASSERT_TRUE(matrix) << matrix.error().message;
  EXPECT_EQ(digest(decoded(*matrix)), expected[1]);
}

TEST_P(GgufFormat, DecodesRowsFromTheMiddle) {
  const std::uint64_t cols = 2 * format().block_values;
  const auto bytes = pseudo_random_bytes(7, 2 * 5 * format().block_bytes);
  const auto matrix = block_matrix(format(), 5, cols, bytes);
  ASSERT_TRUE(matrix) << matrix.error().message;
  const std::vector<float> all = decoded(*matrix);
  std::vector<float> some(2 * cols);
  decode_rows(*matrix, 3, 2, some.data());
  EXPECT_EQ(digest(some), digest(std::span(all).subspan(3 * cols)));
}

// An encoder with one right answer gives those bytes; one that searches is no worse than ggml's.
TEST_P(GgufFormat, EncodesAsWellAsTheReference) {
  ASSERT_NE(format().encode, nullptr);
  bool compared = name() == "F32";
  for (const std::string input : {"gaussian", "heavy", "weights", "edge", "outliers"}) {
    const auto values = fixture().get<float>("input." + input);
    const std::uint64_t rows = fixture().shape("input." + input)[0];
    const auto packed = format().encode(format(), values, rows, values.size() / rows);
    ASSERT_TRUE(packed) << packed.error().message;
    EXPECT_EQ(packed->view.rows, rows);
    const std::string encoded = name() + ".encoded." + input;
    const std::string error = name() + ".error." + input;
    if (fixture().has(encoded)) {
      const auto expected = fixture().get<std::byte>(encoded);
      ASSERT_EQ(packed->data.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(packed->data[i], expected[i]) << input << ", byte " << i % format().block_bytes
                                                << " of block " << i / format().block_bytes;
      }
      compared = true;
    }
    if (fixture().has(error)) {
      const double reference = fixture().get<double>(error)[0];
      const double ours = squared_error(values, decoded(packed->view));
      EXPECT_LE(ours, reference) << input << ": " << ours / reference;
      RecordProperty("error_ratio_" + input, std::to_string(ours / reference));
      compared = true;
    }
  }
  EXPECT_TRUE(compared) << "no encoding of " << name() << " in the fixture";
}

std::vector<float> gaussian(std::size_t count, float sigma, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  // Sums of twelve uniform numbers: near enough to normal, and the same on every platform.
  std::vector<float> values(count);
  for (float& value : values) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits() >> 11) * 0x1p-53;
    value = sigma * static_cast<float>(sum);
  }
  return values;
}

// Encodes finite values, which must work, and decodes them again.
std::vector<float> round_trip(const Format& format, std::span<const float> values,
                              std::uint64_t rows) {
  const auto packed = format.encode(format, values, rows, values.size() / rows);
  EXPECT_TRUE(packed) << packed.error().message;
  return packed ? decoded(packed->view) : std::vector<float>(values.size());
}

double norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// The relative error ‖x − y‖ / ‖x‖ that encoding may cause in normally distributed values.
const std::map<std::string, double> kErrorBounds = {
    {"F32", 0},       {"F16", 0.00024},  {"BF16", 0.0018},  {"Q4_0", 0.089},  {"Q4_1", 0.083},
    {"Q5_0", 0.044},  {"Q5_1", 0.040},   {"Q8_0", 0.0055},  {"Q2_K", 0.27},   {"Q3_K", 0.149},
    {"Q4_K", 0.074},  {"Q5_K", 0.036},   {"Q6_K", 0.0172},  {"Q8_K", 0.0071}, {"IQ1_S", 0.46},
    {"IQ1_M", 0.425}, {"IQ2_XXS", 0.34}, {"IQ2_XS", 0.30},  {"IQ2_S", 0.252}, {"IQ3_XXS", 0.185},
    {"IQ3_S", 0.133}, {"IQ4_NL", 0.076}, {"IQ4_XS", 0.076}, {"TQ1_0", 0.84},  {"TQ2_0", 0.84},
    {"MXFP4", 0.13},  {"NVFP4", 0.13},   {"Q1_0", 0.63},    {"Q2_0", 0.74},
};

TEST_P(GgufFormat, KeepsToItsErrorBound) {
  for (const float sigma : {1e-2f, 3.0f}) {
    const auto values = gaussian(3 * 1024, sigma, 1);
    const auto back = round_trip(format(), values, 3);
    EXPECT_LE(std::sqrt(squared_error(values, back)), kErrorBounds.at(name()) * norm(values));
  }
}

// Rows of 512 values unlike each other, each in a pair of super-blocks.
std::vector<float> varied_rows(std::uint64_t seed) {
  constexpr std::size_t kCols = 512;
  const auto x = gaussian(14 * kCols, 0.02f, seed);
  std::vector<float> values = x;
  const auto fill = [&](std::size_t row, const auto& value) {
    for (std::size_t i = row * kCols; i < (row + 1) * kCols; ++i) values[i] = value(i);
  };
  fill(1, [&](std::size_t i) { return x[i] / (std::fabs(x[kCols + i]) + 0.001f); });  // heavy tails
  fill(2, [&](std::size_t i) { return x[i] + 0.05f; });
  fill(3, [&](std::size_t i) { return x[i] - 1.5f; });  // far from zero
  fill(4, [&](std::size_t i) { return x[i] + 1.5f; });
  fill(5, [&](std::size_t i) { return std::fabs(x[i]); });
  fill(6, [&](std::size_t i) { return x[i] * 1e-5f; });                // scales below 2^-14
  fill(7, [&](std::size_t i) { return i % kCols < 300 ? x[i] : 0; });  // a tail of zeros
  fill(8, [&](std::size_t i) { return std::fabs(x[i]) > 0.03f ? x[i] : 0; });
  fill(9, [&](std::size_t i) { return x[i] * std::ldexp(1.0f, static_cast<int>(i / 16 % 9)); });
  fill(10, [&](std::size_t i) { return x[i / 256 * 256]; });             // constant blocks
  fill(11, [&](std::size_t i) { return x[i / 32 * 32]; });               // and groups
  fill(12, [&](std::size_t i) { return std::round(x[i] * 200) / 64; });  // few distinct values
  fill(13, [&](std::size_t i) { return bfloat_to_float(float_to_bfloat(x[i])); });
  return values;
}

bool searches(const std::string& name) {
  return name.starts_with("IQ") || (name.ends_with("_K") && name != "Q8_K");
}

// What an encoder has made, it makes again: the same bytes if it searches, else the same values.
// The bytes that NVFP4 and Q8_K have to give cannot always do that.
TEST_P(GgufFormat, EncodesItsOwnBlocksToTheSame) {
  for (std::uint64_t seed = 10; seed < 14; ++seed) {
    const auto values = varied_rows(seed);
    const std::uint64_t rows = values.size() / 512;
    const auto first = format().encode(format(), values, rows, 512);
    ASSERT_TRUE(first) << first.error().message;
    const auto once = decoded(first->view);
    const auto second = format().encode(format(), once, rows, 512);
    ASSERT_TRUE(second) << second.error().message;
    const auto twice = decoded(second->view);
    if (name() == "NVFP4") {
      EXPECT_LE(squared_error(once, twice), 0.01 * 0.01 * squared_error(once, values));
      continue;
    }
    for (std::size_t i = 0; i < once.size(); ++i) {
      const float bound = name() == "Q8_K" ? std::fabs(once[i]) * 0x1p-22f : 0;
      ASSERT_LE(std::fabs(once[i] - twice[i]), bound)
          << "value " << i % 512 << " of row " << i / 512;
    }
    if (searches(name())) {
      EXPECT_EQ(first->data, second->data);
    }
  }
}

// Where an encoder searches, other encoders' blocks lose nothing either: here, blocks of random
// bits. Formats with minima need scales and minima of such sizes that decoding does not round.
TEST_P(GgufFormat, EncodesTheValuesOfRandomBlocksExactly) {
  if (!searches(name())) return;
  const std::map<std::string, std::size_t> affine = {{"Q2_K", 80}, {"Q4_K", 0}, {"Q5_K", 0}};
  constexpr std::size_t kBlocks = 60;
  auto bytes = pseudo_random_bytes(format().ggml_type + 100, kBlocks * format().block_bytes);
  for (std::size_t at = 0; at < bytes.size(); at += format().block_bytes) {
    if (const auto found = affine.find(name()); found != affine.end()) {
      for (const std::size_t high : {found->second + 1, found->second + 3}) {
        bytes[at + high] = (bytes[at + high] & std::byte{3}) | std::byte{0x30};  // 0.125 … 0.25
      }
    }
    if (name() == "IQ1_S") bytes[at + 1] &= std::byte{0x7f};
    if (name() == "IQ1_M") bytes[at + 55] &= std::byte{0x7f};
  }
  const auto matrix = block_matrix(format(), kBlocks, format().block_values, bytes);
  ASSERT_TRUE(matrix) << matrix.error().message;
  const auto values = decoded(*matrix);
  std::size_t compared = 0;
  for (std::size_t v = 0; v < values.size(); v += format().block_values) {
    const auto block = std::span(values).subspan(v, format().block_values);
    if (!std::ranges::all_of(block, [](float value) { return std::isfinite(value); })) continue;
    EXPECT_TRUE(std::ranges::equal(round_trip(format(), block, 1), block)) << v;
    ++compared;
  }
  EXPECT_GT(compared, kBlocks * 3 / 4);
}

TEST_P(GgufFormat, EncodesEachRowByItself) {
  const std::uint64_t cols = std::max(512u, format().block_values);
  const auto values = gaussian(5 * cols, 0.5f, 3);
  const auto all = round_trip(format(), values, 5);
  const std::span last = std::span(values).subspan(4 * cols);
  EXPECT_EQ(round_trip(format(), last, 1),
            std::vector<float>(all.end() - std::ptrdiff_t(cols), all.end()));
}

// Zeros, and values below the smallest half, leave no error to speak of and nothing that is not
// finite.
TEST_P(GgufFormat, EncodesZeroAndTinyValues) {
  for (const float tiny : {0.0f, -0.0f, 1e-45f, -1e-39f, 1e-20f, 1e-9f}) {
    std::vector<float> values(512, tiny);
    for (std::size_t i = 0; i < values.size(); i += 3) values[i] = -tiny;
    for (const float back : round_trip(format(), values, 1)) {
      ASSERT_LE(std::fabs(back), 2.5f * std::fabs(tiny)) << tiny;
    }
  }
}

TEST_P(GgufFormat, RefusesWhatIsNotFinite) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    auto values = gaussian(2 * 512, 1, 4);
    values[512 + 300] = bad;
    const auto packed = format().encode(format(), values, 2, 512);
    ASSERT_FALSE(packed);
    EXPECT_EQ(packed.error().kind, ErrorKind::kInput);
    EXPECT_THAT(packed.error().message, ::testing::HasSubstr(name() + ": value 300 of row 1 is "));
    EXPECT_THAT(packed.error().message, ::testing::HasSubstr("expected a finite number"));
  }
}

// A half-precision scale ends at 65504. A number beyond what a format reaches is an error, except
// in NVFP4, which clips as its reference does.
TEST_P(GgufFormat, RefusesWhatItsScaleCannotHold) {
  const std::string n = name();
  const bool holds = n == "F32" || n == "BF16" || n == "MXFP4" || n == "NVFP4" || n == "Q8_K";
  for (const float huge : {3e10f, -1e30f, 3e38f}) {
    auto values = gaussian(2 * 512, 1, 5);
    values[512 + 300] = huge;
    values[512 + 301] = -huge;  // at 3e38 their difference overflows
    const auto packed = format().encode(format(), values, 2, 512);
    EXPECT_EQ(static_cast<bool>(packed), holds);
    if (packed || holds) continue;
    EXPECT_THAT(packed.error().message, ::testing::HasSubstr("too large for this format"));
    EXPECT_THAT(packed.error().message, ::testing::HasSubstr("of row 1 is "));
  }
}

TEST_P(GgufFormat, RefusesPartOfABlockAndWrongCounts) {
  const auto values = gaussian(2 * 512, 1, 6);
  const auto too_few = format().encode(format(), std::span(values).first(1000), 2, 512);
  ASSERT_FALSE(too_few);
  EXPECT_THAT(too_few.error().message, ::testing::HasSubstr("2 rows × 512 columns"));
  EXPECT_FALSE(format().encode(format(), values, 1ull << 60, 512));
  if (format().block_values == 1) return;
  // 1024 values are whole blocks, but not so every row.
  const auto partial = format().encode(format(), values, 1024 / (format().block_values / 2),
                                       format().block_values / 2);
  ASSERT_FALSE(partial);
  EXPECT_THAT(partial.error().message, ::testing::HasSubstr("do not fill whole blocks"));
}

}  // namespace
}  // namespace espalier::pack
