#include "pack/matrix.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace espalier::pack
