// Wrong arguments to real kernels, which the emulator finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compute/gpu/kernels/entries.h"

namespace espalier::gpu::emulated {
namespace {

TEST(GpuFaults, AMatrixThatIsSmallerThanItsShape) {
  Buffer data("data", std::vector<std::uint8_t>(5 * 18));
  Buffer x("x", std::vector<float>(32));
  Buffer y("y", 6 * sizeof(float));
  const Status status = launch::project_q4_0(
      {.blocks_x = 2, .threads = 128},
      {.weights = {.data = data.at<const std::uint8_t>(), .rows = 6, .cols = 32},
       .x = x.at<const float>(),
       .y = y.at<float>(),
       .rows = 1});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message,
            "project_q4_0: block (1, 0), thread 32: reads element 90 of data, which has 90");
}

TEST(GpuFaults, TwoRowsOfOneSequenceInAStep) {
  Buffer x("x", std::vector<float>(64));
  Buffer weight("weight", std::vector<float>(64));
  Buffer state("state", std::vector<float>(32));
  Buffer sequences("sequences", std::vector<std::int32_t>{0, 0});
  Buffer positions("positions", std::vector<std::int32_t>{1, 2});
  Buffer y("y", 64 * sizeof(float));
  const Status status =
      launch::causal_convolution({.blocks_y = 2}, {.x = x.at<const float>(),
                                                   .weight = weight.at<const float>(),
                                                   .state = state.at<float>(),
                                                   .sequences = sequences.at<const std::int32_t>(),
                                                   .positions = positions.at<const std::int32_t>(),
                                                   .y = y.at<float>(),
                                                   .channels = 32,
                                                   .taps = 2,
                                                   .state_size = 32});
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, testing::HasSubstr("which another block wrote"));
}

}  // namespace
}  // namespace espalier::gpu::emulated
