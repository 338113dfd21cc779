// From one packed format to another and back, weight by weight.
#include "pack/repack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "pack/grouped_int4.h"
#include "pack/mlx.h"

namespace espalier::pack {
namespace {

constexpr std::uint64_t kRows = 5, kCols = 512;

std::vector<std::uint64_t> all_rows(std::uint64_t count = kRows) {
  std::vector<std::uint64_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

std::vector<float> random_values() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.01f, 0.05f);
  std::vector<float> values(kRows * kCols);
  for (float& value : values) value = normal(random);
  return values;
}

PackedMatrix packed_as(std::string_view name, const std::vector<float>& values) {
  const Format& format = *find_format(name);
  auto packed = format.encode(format, values, kRows, kCols);
  if (!packed) throw std::runtime_error(packed.error().message);
  return std::move(*packed);
}

std::vector<float> decoded(const Matrix& matrix) {
  std::vector<float> values(matrix.rows * matrix.cols);
  decode_rows(matrix, 0, matrix.rows, values.data());
  return values;
}

const Format* found(const Result<const Format*>& result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *result;
}

struct Pair {
  const char* gguf;
  const char* mlx;
};

class BlocksAndMlx : public ::testing::TestWithParam<Pair> {};

// Whatever a block holds, MLX's form of it has the same weights, and the way back the same bytes.
TEST_P(BlocksAndMlx, ThereAndBack) {
  ThreadPool threads(2);
  const PackedMatrix block = packed_as(GetParam().gguf, random_values());
  const Format* mlx = found(find_repacking(block.view, Family::kMlx, threads));
  EXPECT_EQ(mlx->name, GetParam().mlx);
  const auto there = repack_rows(block.view, all_rows(), *mlx, threads);
  ASSERT_TRUE(there) << there.error().message;
  EXPECT_EQ(decoded(there->view), decoded(block.view));

  const Format* back_format = found(find_repacking(there->view, Family::kGguf, threads));
  EXPECT_EQ(back_format->name, GetParam().gguf);
  const auto back = repack_rows(there->view, all_rows(), *back_format, threads);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(decoded(back->view), decoded(block.view));
  EXPECT_EQ(back->data, block.data);
}

// TQ2_0 holds the same codes as TQ1_0, which is smaller, and so does not come back as itself.
INSTANTIATE_TEST_SUITE_P(Formats, BlocksAndMlx,
                         ::testing::Values(Pair{"Q4_0", "MLX-4-g32"}, Pair{"Q4_1", "MLX-4-g32"},
                                           Pair{"Q5_0", "MLX-5-g32"}, Pair{"Q5_1", "MLX-5-g32"},
                                           Pair{"Q8_0", "MLX-8-g32"}, Pair{"TQ1_0", "MLX-2-g128"},
                                           Pair{"Q1_0", "MLX-1-g128"}, Pair{"MXFP4", "MLX-MXFP4"},
                                           Pair{"NVFP4", "MLX-NVFP4"}));

TEST(Repack, WiderGroupsWhereNeighboursAgree) {
  ThreadPool threads(1);
  for (const auto& [group, name] : {std::pair{128, "MLX-4-g128"}, {64, "MLX-4-g64"}}) {
    std::vector<float> values(kRows * kCols);
    for (std::size_t i = 0; i < values.size(); ++i) {
      // Each run of `group` values is a scale of its own times levels −8 … 7, both ends included.
      values[i] = std::ldexp(static_cast<float>(1 + i / group % 3), -6) *
                  static_cast<float>(static_cast<int>(i * 7 % 16) - 8);
    }
    const PackedMatrix block = packed_as("Q4_0", values);
    EXPECT_EQ(found(find_repacking(block.view, Family::kMlx, threads))->name, name);
    const auto there = repack_rows(block.view, all_rows(), *find_format(name), threads);
    ASSERT_TRUE(there) << there.error().message;
    EXPECT_EQ(decoded(there->view), values);
    const auto back = repack_rows(there->view, all_rows(), *find_format("Q4_0"), threads);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(back->data, block.data);
  }
}

// MLX's own packs: BF16 scales and biases of usual size are halves too, so 4 and 5 bits fit, and
// what has fewer bits goes into the next wider blocks; biases of 2 bits are multiples of the scale.
TEST(Repack, MlxToBlocks) {
  ThreadPool threads(2);
  const std::pair<const char*, const char*> cases[] = {
      {"MLX-4-g64", "Q4_1"}, {"MLX-4-g128", "Q4_1"}, {"MLX-5-g32", "Q5_1"},  {"MLX-3-g64", "Q4_1"},
      {"MLX-2-g32", "Q4_0"}, {"MLX-1-g32", "Q4_1"},  {"MLX-MXFP4", "MXFP4"}, {"MLX-NVFP4", "NVFP4"},
  };
  for (const auto& [from, to] : cases) {
    SCOPED_TRACE(from);
    const PackedMatrix mlx = packed_as(from, random_values());
    const Format* format = found(find_repacking(mlx.view, Family::kGguf, threads));
    EXPECT_EQ(format->name, to);
    const auto block = repack_rows(mlx.view, all_rows(), *format, threads);
    ASSERT_TRUE(block) << block.error().message;
    EXPECT_EQ(decoded(block->view), decoded(mlx.view));
  }
}

TEST(Repack, RowsInTheOrderGiven) {
  ThreadPool threads(2);
  const PackedMatrix block = packed_as("Q5_1", random_values());
  const std::vector<std::uint64_t> order = {3, 0, 3};
  for (const char* to : {"Q5_1", "MLX-5-g32"}) {
    const auto picked = repack_rows(block.view, order, *find_format(to), threads);
    ASSERT_TRUE(picked) << picked.error().message;
    ASSERT_EQ(picked->view.rows, 3u);
    const std::vector<float> all = decoded(block.view);
    const std::vector<float> some = decoded(picked->view);
    for (std::size_t r = 0; r < order.size(); ++r) {
      EXPECT_TRUE(std::equal(some.begin() + r * kCols, some.begin() + (r + 1) * kCols,
                             all.begin() + order[r] * kCols));
    }
  }
}

// 8 rows × 64 columns of a 4-bit layout; `zero` is the zero point as stored, in every nibble.
struct Int4 {
  std::vector<std::byte> codes, scales, zeros;
  Matrix matrix;

  Int4(std::string_view name, std::uint32_t zero, float scale)
      : codes(8 * 64 / 2), scales(8 * 2 * 4) {
    for (std::size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<std::byte>(i * 37 + i / 7);
    for (std::size_t i = 0; i < scales.size() / 4; ++i) {
      const float value = std::ldexp(scale, static_cast<int>(i % 3));
      std::memcpy(scales.data() + 4 * i, &value, 4);
    }
    const Format& format = *find_format(name);
    if (name != "CT-SYM-4-g32") zeros.resize(8 * 2 / 2, static_cast<std::byte>(zero * 17));
    auto made = int4_matrix(format, 8, 64, codes, scales, ScaleType::kF32, zeros, {});
    if (!made) throw std::runtime_error(made.error().message);
    matrix = *made;
  }
};

TEST(Repack, FourBitIntegersToBlocks) {
  ThreadPool threads(2);
  struct Case {
    const char* format;
    std::uint32_t zero;
    const char* blocks;
  };
  // Zero point 8 is Q4_0's own. Others make an offset, scale · zero point, which a half holds if
  // the scale has bits to spare; else 5-bit codes take the zero point in.
  const Case cases[] = {{"GPTQ-V1-4-g32", 7, "Q4_0"}, {"GPTQ-V2-4-g32", 8, "Q4_0"},
                        {"AWQ-4-g32", 8, "Q4_0"},     {"CT-SYM-4-g32", 0, "Q4_0"},
                        {"AWQ-4-g32", 5, "Q4_1"},     {"CT-ASYM-4-g32", 9, "Q4_1"}};
  for (const Case& expected : cases) {
    SCOPED_TRACE(fmt::format("{} {}", expected.format, expected.zero));
    const Int4 int4(expected.format, expected.zero, 0.03125f);
    const Format* format = found(find_repacking(int4.matrix, Family::kGguf, threads));
    EXPECT_EQ(format->name, expected.blocks);
    const auto block = repack_rows(int4.matrix, all_rows(8), *format, threads);
    ASSERT_TRUE(block) << block.error().message;
    EXPECT_EQ(decoded(block->view), decoded(int4.matrix));
  }
  const Int4 eleven_bits("AWQ-4-g32", 11, 2047 * 0x1p-20f);
  EXPECT_EQ(found(find_repacking(eleven_bits.matrix, Family::kGguf, threads))->name, "Q5_0");
  const Int4 no_half("AWQ-4-g32", 11, 4097 * 0x1p-20f);
  EXPECT_FALSE(find_repacking(no_half.matrix, Family::kGguf, threads));
}

TEST(Repack, PlainNumbersStayOrWiden) {
  ThreadPool threads(1);
  for (const char* name : {"F32", "F16", "BF16"}) {
    const PackedMatrix plain = packed_as(name, random_values());
    EXPECT_EQ(found(find_repacking(plain.view, Family::kMlx, threads))->name, name);
    EXPECT_EQ(found(find_repacking(plain.view, Family::kGguf, threads))->name, name);
    const auto same = repack_rows(plain.view, all_rows(), *find_format(name), threads);
    ASSERT_TRUE(same);
    EXPECT_EQ(same->data, plain.data);
    const auto wide = repack_rows(plain.view, all_rows(), *find_format("F32"), threads);
    ASSERT_TRUE(wide);
    EXPECT_EQ(decoded(wide->view), decoded(plain.view));
  }
}

std::string refusal(const Matrix& matrix, Family family) {
  ThreadPool threads(2);
  const auto format = find_repacking(matrix, family, threads);
  return format ? "found " + std::string((*format)->name) : format.error().message;
}

TEST(RepackWrong, WhatHasNoCounterpart) {
  EXPECT_EQ(refusal(packed_as("Q4_K", random_values()).view, Family::kMlx),
            "Q4_K has no counterpart");
  EXPECT_EQ(refusal(packed_as("IQ4_NL", random_values()).view, Family::kMlx),
            "IQ4_NL has no counterpart");
  EXPECT_EQ(refusal(packed_as("MLX-MXFP8", random_values()).view, Family::kGguf),
            "MLX-MXFP8 has no counterpart");
  Int4 int4("GPTQ-V2-4-g32", 8, 1);
  std::vector<std::byte> groups(64 * 4);
  int4.matrix.input_group = groups;
  EXPECT_EQ(refusal(int4.matrix, Family::kGguf), "GPTQ-V2-4-g32 in act-order has no counterpart");
}

TEST(RepackWrong, WeightsThatWouldChange) {
  ThreadPool threads(2);
  // MLX's biases of 8-bit codes are no multiples of the scales.
  EXPECT_THAT(refusal(packed_as("MLX-8-g64", random_values()).view, Family::kGguf),
              ::testing::StartsWith("MLX-8-g64 cannot become Q8_0: the weight in row 0, column "));
  // A scale beyond a half's range, in the last row only: the format that got there is named.
  std::vector<float> values(kRows * kCols, 0.0f);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 16);
  values.back() = 1e7f;
  EXPECT_THAT(refusal(packed_as("MLX-4-g32", values).view, Family::kGguf),
              ::testing::HasSubstr("row 4, column "));
  // Neither infinity nor NaN is a weight that can be compared.
  PackedMatrix infinite = packed_as("Q8_0", random_values());
  infinite.data[0] = std::byte{0};
  infinite.data[1] = std::byte{0x7e};
  EXPECT_THAT(refusal(infinite.view, Family::kMlx), ::testing::HasSubstr("row 0, column 0"));
  EXPECT_FALSE(repack_rows(infinite.view, all_rows(), *find_format("Q4_K"), threads));
}

TEST(RepackWrong, ColumnsThatFillNoBlocks) {
  std::vector<std::byte> codes(64 * 4), scales(64 * 2);
  const auto matrix =
      int4_matrix(*find_format("CT-SYM-4-row"), 64, 8, codes, scales, ScaleType::kF16, {}, {});
  ASSERT_TRUE(matrix);
  EXPECT_EQ(refusal(*matrix, Family::kGguf),
            "CT-SYM-4-row rows of 8 columns do not fill the other's blocks");
}

}  // namespace
}  // namespace espalier::pack
