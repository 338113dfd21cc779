// The table of the fastest kernels: which line serves a product.
#include "compute/gpu/tuned.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace espalier::gpu {
namespace {

constexpr std::uint64_t kAllWeights = ~std::uint64_t{0};
constexpr TunedKernel kTable[] = {
    {"A", "Q4_0", 16, std::uint64_t{1} << 25, "few"},
    {"A", "Q4_0", 16, kAllWeights, "few and large"},
    {"A", "Q4_0", 32, std::uint64_t{1} << 25, "more"},
    {"A", "Q4_0", 0xffffffff, std::uint64_t{1} << 25, "many"},
    {"B", "Q4_0", 16, std::uint64_t{1} << 25, "another GPU's"},
};

TEST(GpuTuned, FindsTheClassOfRowsAndWeights) {
  const auto kernel = [](std::uint64_t weights, std::uint64_t rows) {
    return tuned_kernel(kTable, "A", "Q4_0", weights, rows);
  };
  EXPECT_EQ(kernel(1000, 1), "few");
  EXPECT_EQ(kernel(1000, 16), "few");
  EXPECT_EQ(kernel(1000, 17), "more");
  EXPECT_EQ(kernel(1000, 32), "more");
  EXPECT_EQ(kernel(1000, 33), "");  // no line for up to 128
  EXPECT_EQ(kernel(1000, 129), "many");
  EXPECT_EQ(kernel(1000, std::uint64_t{1} << 40), "many");
  EXPECT_EQ(kernel(std::uint64_t{1} << 25, 1), "few");
  EXPECT_EQ(kernel((std::uint64_t{1} << 25) + 1, 1), "few and large");
}

TEST(GpuTuned, SaysNothingOfOtherGpusAndFormats) {
  EXPECT_EQ(tuned_kernel(kTable, "B", "Q4_0", 1000, 1), "another GPU's");
  EXPECT_EQ(tuned_kernel(kTable, "", "Q4_0", 1000, 1), "");
  EXPECT_EQ(tuned_kernel(kTable, "A", "Q4_K", 1000, 1), "");
  EXPECT_EQ(tuned_kernel({}, "A", "Q4_0", 1000, 1), "");
}

TEST(GpuTuned, TheTableHasEachClassOnce) {
  const auto table = tuned_kernels();
  for (std::size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(tuned_kernel(table, table[i].gpu, table[i].format, table[i].most_weights,
                           table[i].most_rows),
              table[i].kernel);
    EXPECT_TRUE(std::count(std::begin(kRowClasses), std::end(kRowClasses), table[i].most_rows));
    EXPECT_TRUE(
        std::count(std::begin(kWeightClasses), std::end(kWeightClasses), table[i].most_weights));
  }
}

}  // namespace
}  // namespace espalier::gpu
