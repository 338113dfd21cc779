#include "pack/matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace espalier::pack {
namespace {

TEST(Formats, NamesAndTypeNumbersAreUnique) {
  for (const Format& format : formats()) {
    EXPECT_EQ(find_format(format.name), &format) << format.name;
    if (format.ggml_type != kNoGgmlType) {
      EXPECT_EQ(find_ggml_format(format.ggml_type), &format) << format.name;
    }
  }
  EXPECT_EQ(find_format("Q9_9"), nullptr);
  EXPECT_EQ(find_ggml_format(kNoGgmlType), nullptr);
}

TEST(BlockMatrix, RefusesSizesThatDoNotFit) {
  const std::vector<std::byte> data(18);
  EXPECT_TRUE(block_matrix(*find_format("Q4_0"), 1, 32, data));
  EXPECT_FALSE(block_matrix(*find_format("Q4_0"), 1, 33, data));
  EXPECT_FALSE(block_matrix(*find_format("Q4_0"), 2, 32, data));
  EXPECT_FALSE(block_matrix(*find_format("Q4_0"), 1ull << 63, 64, data));
}

TEST(RowView, DecodesToTheRowsOfTheWhole) {
  constexpr std::uint64_t kRows = 9;
  constexpr std::uint64_t kCols = 256;
  std::mt19937 random(3);
  std::vector<float> values(kRows * kCols);
  for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random);
  int viewed = 0;
  for (const Format& format : formats()) {
    if (format.encode == nullptr) continue;
    const auto packed = format.encode(format, values, kRows, kCols);
    ASSERT_TRUE(packed) << format.name << ": " << packed.error().message;
    const std::optional<Matrix> view = row_view(packed->view, 2, 5);
    if (!view) continue;
    ++viewed;
    std::vector<float> all(kRows * kCols);
    std::vector<float> rows(5 * kCols);
    decode_rows(packed->view, 0, kRows, all.data());
    decode_rows(*view, 0, 5, rows.data());
    EXPECT_EQ(view->rows, 5u);
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), all.begin() + 2 * kCols)) << format.name;
  }
  EXPECT_GE(viewed, 30);
}

TEST(RowView, NothingWhereRowsShareTheirParts) {
  Matrix matrix{.rows = 16, .cols = 128};
  for (const Format& format : formats()) {
    if (format.family != Family::kGptq && format.family != Family::kAwq &&
        format.family != Family::kExl3) {
      continue;
    }
    matrix.format = &format;
    EXPECT_FALSE(row_view(matrix, 0, 8)) << format.name;
  }
}

}  // namespace
}  // namespace espalier::pack
