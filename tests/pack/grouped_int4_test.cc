#include "pack/grouped_int4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "file/hf_directory.h"
#include "support/data.h"

namespace espalier::pack {
namespace {

using testing::HasSubstr;

// Fixtures of make_hf_quant_fixtures.py: packed by it, or cut out of real directories.
class Int4Fixtures : public testing::TestWithParam<const char*> {};

TEST_P(Int4Fixtures, DecodeBitForBit) {
  const std::string name = std::string("hf_quant/") + GetParam();
  const auto directory = file::HfDirectory::open(test::data_path(name));
  ASSERT_TRUE(directory) << directory.error().message;
  const auto expected = file::Safetensors::open(test::data_path(name + ".expected.safetensors"));
  ASSERT_TRUE(expected) << expected.error().message;
  ASSERT_FALSE(expected->tensors().empty());
  for (const file::SafetensorsTensor& weights : expected->tensors()) {
    const auto matrix = directory->find_matrix(weights.name);
    ASSERT_TRUE(matrix) << matrix.error().message;
    ASSERT_TRUE(*matrix) << weights.name;
    const Matrix& packed = **matrix;
    ASSERT_EQ((std::vector{packed.rows, packed.cols}), weights.shape);
    std::vector<float> decoded(packed.rows * packed.cols);
    decode_rows(packed, 0, packed.rows, decoded.data());
    EXPECT_EQ(std::memcmp(decoded.data(), weights.data.data(), weights.data.size()), 0)
        << weights.name;
    // A row alone is the same row.
    std::vector<float> row(packed.cols);
    decode_rows(packed, packed.rows - 1, 1, row.data());
    EXPECT_EQ(std::memcmp(row.data(), decoded.data() + (packed.rows - 1) * packed.cols,
                          row.size() * sizeof(float)),
              0)
        << weights.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Int4Fixtures,
                         testing::Values("gptq-v1-g128", "gptq-v2-row", "awq-g64", "ct-mixed",
                                         "real-gptq-v1-g128", "real-gptq-v1-g128-desc_act-asym",
                                         "real-gptq-v2-g128", "real-awq-gemm-g128",
                                         "real-ct-w4a16-sym-g128", "real-ct-w4a16-asym-g128"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Int4Formats, AreFoundByLayoutAndGroup) {
  EXPECT_EQ(find_int4_format(Int4Layout::kGptqV1, 128), find_format("GPTQ-V1-4-g128"));
  EXPECT_EQ(find_int4_format(Int4Layout::kGptqV2, 32), find_format("GPTQ-V2-4-g32"));
  EXPECT_EQ(find_int4_format(Int4Layout::kAwq, 64), find_format("AWQ-4-g64"));
  EXPECT_EQ(find_int4_format(Int4Layout::kCtSymmetric, kWholeRow), find_format("CT-SYM-4-row"));
  EXPECT_EQ(find_int4_format(Int4Layout::kCtAsymmetric, 128), find_format("CT-ASYM-4-g128"));
  EXPECT_EQ(find_int4_format(Int4Layout::kAwq, 48), nullptr);
  EXPECT_DOUBLE_EQ(find_format("AWQ-4-g128")->bits_per_weight, 4 + 20.0 / 128);
  EXPECT_DOUBLE_EQ(find_format("CT-SYM-4-g32")->bits_per_weight, 4.5);
}

// Word 0 counts its nibbles, word i repeats i; all scales are 2.
TEST(Int4Layouts, ReadNibblesInTheirOrder) {
  const std::uint32_t codes[8] = {0x76543210, 0x11111111, 0x22222222, 0x33333333,
                                  0x44444444, 0x55555555, 0x66666666, 0x77777777};
  std::uint16_t scales[8];
  std::fill(std::begin(scales), std::end(scales), std::uint16_t{0x4000});
  const std::uint32_t zeros = 0xfedcba98;
  const auto decode = [&](const char* format) {
    const auto matrix = int4_matrix(*find_format(format), 8, 8, std::as_bytes(std::span(codes)),
                                    std::as_bytes(std::span(scales)), ScaleType::kF16,
                                    std::as_bytes(std::span(&zeros, 1)), {});
    EXPECT_TRUE(matrix);
    std::vector<float> out(64);
    decode_rows(*matrix, 0, 8, out.data());
    return out;
  };
  // Word r is output r (GPTQ): row 0 counts up, zero point 8.
  EXPECT_EQ(decode("GPTQ-V2-4-row")[3], 2.0f * (3 - 8));
  EXPECT_EQ(decode("GPTQ-V2-4-row")[8 * 2], 2.0f * (2 - 10));
  // 0xfedcba98 + 0x11111111 carries out of the word: zero points 9, 10, …, 15, 0.
  EXPECT_EQ(decode("GPTQ-V1-4-row")[3], 2.0f * (3 - 9));
  EXPECT_EQ(decode("GPTQ-V1-4-row")[8 * 7], 2.0f * (7 - 0));
  // Word i is input i (AWQ): output 1 is nibble 4 of codes and zeros.
  EXPECT_EQ(decode("AWQ-4-row")[8 * 1 + 0], 2.0f * (4 - 0xc));
  EXPECT_EQ(decode("AWQ-4-row")[8 * 2 + 5], 2.0f * (5 - 9));
}

TEST(Int4Matrix, RefusesWhatDoesNotFit) {
  const std::vector<std::byte> codes(8 * 128 / 2), scales(8 * 2), zeros(4), groups(128 * 4);
  const auto error = [&](const char* format, std::uint64_t rows, std::uint64_t cols, Bytes c,
                         Bytes s, Bytes z, Bytes g) {
    const auto matrix = int4_matrix(*find_format(format), rows, cols, c, s, ScaleType::kF16, z, g);
    return matrix ? "" : matrix.error().message;
  };
  EXPECT_EQ(error("AWQ-4-g128", 8, 128, codes, scales, zeros, {}), "");
  EXPECT_EQ(error("GPTQ-V1-4-g128", 8, 128, codes, scales, zeros, groups), "");
  EXPECT_EQ(error("CT-SYM-4-g128", 8, 128, codes, scales, {}, {}), "");
  EXPECT_THAT(error("AWQ-4-g128", 8, 192, codes, scales, zeros, {}),
              HasSubstr("8 rows × 192 columns, expected columns in whole groups of 128"));
  EXPECT_THAT(error("AWQ-4-g128", 9, 128, codes, scales, zeros, {}),
              HasSubstr("rows in whole words of 8"));
  EXPECT_THAT(error("AWQ-4-g128", 0, 128, {}, {}, {}, {}), HasSubstr("0 rows"));
  EXPECT_THAT(error("CT-SYM-4-g128", 1ull << 60, 128, codes, scales, {}, {}),
              HasSubstr("1152921504606846976 rows"));
  EXPECT_THAT(error("AWQ-4-g128", 8, 256, codes, scales, zeros, {}),
              HasSubstr("codes take 512 bytes, expected 1024"));
  EXPECT_THAT(error("AWQ-4-g128", 8, 128, codes, zeros, zeros, {}),
              HasSubstr("scales take 4 bytes, expected 16"));
  EXPECT_THAT(error("AWQ-4-g128", 8, 128, codes, scales, {}, {}),
              HasSubstr("zero points take 0 bytes, expected 4"));
  EXPECT_THAT(error("CT-SYM-4-g128", 8, 128, codes, scales, zeros, {}),
              HasSubstr("zero points take 4 bytes, expected 0"));
  EXPECT_THAT(error("GPTQ-V1-4-g128", 8, 128, codes, scales, zeros, zeros),
              HasSubstr("groups of inputs take 4 bytes, expected 512"));
  std::vector<std::byte> wrong = groups;
  wrong[5 * 4] = std::byte{1};
  EXPECT_THAT(error("GPTQ-V1-4-g128", 8, 128, codes, scales, zeros, wrong),
              HasSubstr("input feature 5 is in group 1, expected 0 to 0"));
  wrong[5 * 4] = std::byte{0};
  wrong[6 * 4 + 3] = std::byte{0x80};
  EXPECT_THAT(error("GPTQ-V1-4-g128", 8, 128, codes, scales, zeros, wrong),
              HasSubstr("input feature 6 is in group -2147483648"));
}

}  // namespace
}  // namespace espalier::pack
