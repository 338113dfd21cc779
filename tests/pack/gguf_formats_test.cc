// Every GGUF format of the table against what other implementations make of it:
// tests/data/formats/gguf.safetensors, made by tests/data/make_format_fixtures.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

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
  for (const std::string input : {"gaussian", "heavy", "weights", "edge"}) {
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

}  // namespace
}  // namespace espalier::pack
