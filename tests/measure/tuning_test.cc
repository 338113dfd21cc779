// From times to the table of the fastest kernels.
#include "measure/tuning.h"

#include <gtest/gtest.h>

namespace espalier::measure {
namespace {

GpuLine line(const std::string& format, const Shape& shape, std::uint64_t rows,
             const std::string& kernel, double microseconds) {
  GpuLine made = {
      .op = "project", .format = format, .kernel = kernel, .shape = shape, .rows = rows};
  made.seconds = {.median = 1e-6 * microseconds, .least = 0, .most = 0};
  return made;
}

constexpr const char* kHeading =
    "// Written by espalier bench --tune: GPU, format, most rows, most weights, kernel.\n";

// One that is the fastest at one number of rows of a class must be so over all of them.
TEST(Tuning, TakesTheLeastMeanOfAClass) {
  const Shape small = {64, 64};
  const GpuLine lines[] = {line("Q4_0", small, 1, "a", 1),  line("Q4_0", small, 16, "a", 16),
                           line("Q4_0", small, 1, "b", 2),  line("Q4_0", small, 16, "b", 2),
                           line("Q4_0", small, 32, "a", 5), line("Q4_0", small, 32, "b", 6)};
  EXPECT_EQ(tuned_lines("GPU", lines),
            std::string(kHeading) +
                "{\"GPU\", \"Q4_0\", 16, 33554432, \"b\"},  // µs: a 4.0, b 2.0\n"
                "{\"GPU\", \"Q4_0\", 32, 33554432, \"a\"},  // µs: a 5.0, b 6.0\n");
}

TEST(Tuning, LeavesOutKernelsThatDoNotServeAllOfAClass) {
  const Shape large = {14336, 16384};
  const GpuLine lines[] = {line("Q4_0", large, 1, "a", 1), line("Q4_0", large, 16, "b", 9),
                           line("Q4_0", large, 1, "b", 9), line("Q6_K", large, 129, "c", 7),
                           line("Q8_0", large, 1, "a", 1), line("Q8_0", large, 2, "b", 1)};
  EXPECT_EQ(tuned_lines("GPU", lines),
            std::string(kHeading) +
                "{\"GPU\", \"Q4_0\", 16, 0xffffffffffffffff, \"b\"},  // µs: b 9.0\n"
                "{\"GPU\", \"Q6_K\", 0xffffffff, 0xffffffffffffffff, \"c\"},  // µs: c 7.0\n");
}

TEST(Tuning, WithoutTimesThereIsNoLine) { EXPECT_EQ(tuned_lines("GPU", {}), kHeading); }

}  // namespace
}  // namespace espalier::measure
