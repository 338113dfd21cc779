#include "pack/transposed.h"

#include <gtest/gtest.h>

namespace espalier::pack {
namespace {

TEST(Transposed, DecodesTheTransposeOfPlainValues) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};  // [3, 2]
  for (const char* name : {"F32", "F16", "BF16"}) {
    const Format& plain = *find_format(name);
    const auto packed = plain.encode(plain, values, 3, 2);
    ASSERT_TRUE(packed) << packed.error().message;
    const auto matrix = transposed(packed->view);
    ASSERT_TRUE(matrix) << matrix.error().message;
    EXPECT_EQ(matrix->format->name, std::string(name) + "-T");
    EXPECT_EQ(matrix->rows, 2u);
    EXPECT_EQ(matrix->cols, 3u);
    std::vector<float> decoded(6);
    decode_rows(*matrix, 0, 2, decoded.data());
    EXPECT_EQ(decoded, (std::vector<float>{1, 3, 5, 2, 4, 6}));
    decode_rows(*matrix, 1, 1, decoded.data());
    EXPECT_EQ(decoded[0], 2);
    EXPECT_EQ(decoded[1], 4);
  }
}

TEST(Transposed, PackedFormatsHaveNone) {
  const Format& q8 = *find_format("Q8_0");
  const auto packed = q8.encode(q8, std::vector<float>(64, 1), 2, 32);
  const auto matrix = transposed(packed->view);
  ASSERT_FALSE(matrix);
  EXPECT_EQ(matrix.error().message, "a matrix in Q8_0 has no transpose, expected F32, F16 or BF16");
}

}  // namespace
}  // namespace espalier::pack
