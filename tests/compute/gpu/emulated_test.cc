// The emulator runs kernels as a GPU would, and says what a GPU would leave undefined: each kernel
// here either keeps the rules or breaks one of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "compute/gpu/dialect/dialect.h"

namespace espalier::gpu::emulated {
namespace {

using testing::HasSubstr;

struct TestArguments {
  Global<const float> x;
  Global<float> y;
  std::uint32_t size = 0;
};

struct TestMemory {
  SharedArray<float, 64> values;
  SharedArray<float, kMostWarps> warps;
};

// Runs `body` with a block of 64 threads, x = 0, 1, 2 … and an output of as many.
class Emulated : public testing::Test {
 protected:
  using Body = void (*)(Thread, const TestArguments&, TestMemory*);

  Status run(Body body, Grid grid = {.threads = 64}, std::uint32_t size = 64) {
    std::vector<float> x(size);
    std::iota(x.begin(), x.end(), 0.0f);
    x_.emplace("x", x);
    y_.emplace("y", size * sizeof(float));
    return run_kernel<TestMemory>("probe", body, grid,
                                  TestArguments{x_->at<const float>(), y_->at<float>(), size});
  }
  std::string error(Body body, Grid grid = {.threads = 64}) {
    const Status status = run(body, grid);
    return status ? "no error" : status.error().message;
  }

  std::optional<Buffer> x_, y_;
};

// Each thread reads what another one wrote.
ESPALIER_DEVICE void mirror(Thread at, Arguments<TestArguments> args, BlockMemory<TestMemory> m) {
  m->values[at.index] = args.x[at.index];
  barrier();
  args.y[at.index] = m->values[at.threads - 1 - at.index];
}

TEST_F(Emulated, BarriersOrderTheThreads) {
  ASSERT_TRUE(run(mirror));
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(y_->values<float>()[i], 63 - static_cast<int>(i));
  EXPECT_EQ(y_->first_unwritten(), std::nullopt);
}

ESPALIER_DEVICE void mirror_without_barrier(Thread at, Arguments<TestArguments> args,
                                            BlockMemory<TestMemory> m) {
  m->values[at.index] = args.x[at.index];
  if (at.index >= 32) args.y[at.index] = m->values[63 - at.index];
}

TEST_F(Emulated, FindsAMissingBarrier) {
  EXPECT_EQ(error(mirror_without_barrier),
            "probe: block (0, 0), thread 32: reads element 31 of shared memory, which another "
            "thread wrote with no barrier between");
}

ESPALIER_DEVICE void overwrites_what_is_read(Thread at, Arguments<TestArguments> args,
                                             BlockMemory<TestMemory> m) {
  m->values[at.index] = args.x[at.index];
  barrier();
  const float next = m->values[(at.index + 1) % 64];
  m->values[at.index] = next;
}

TEST_F(Emulated, FindsAWriteAfterAReadWithoutBarrier) {
  EXPECT_THAT(error(overwrites_what_is_read),
              HasSubstr("thread 1: writes element 1 of shared memory, which another thread read"));
}

ESPALIER_DEVICE void all_write_one_element(Thread at, Arguments<TestArguments> args,
                                           BlockMemory<TestMemory>) {
  args.y[at.index / 2] = 1;
}

TEST_F(Emulated, FindsTwoThreadsThatWriteOneGlobalElement) {
  EXPECT_THAT(error(all_write_one_element),
              HasSubstr("thread 1: writes element 0 of y, which another thread wrote"));
}

ESPALIER_DEVICE void blocks_overlap(Thread at, Arguments<TestArguments> args,
                                    BlockMemory<TestMemory>) {
  if (at.index == 0) args.y[at.block_x / 2] = 1;
}

TEST_F(Emulated, FindsTwoBlocksThatWriteOneElement) {
  EXPECT_EQ(error(blocks_overlap, {.blocks_x = 4}),
            "probe: block (1, 0), thread 0: writes element 0 of y, which another block wrote with "
            "no barrier between");
}

ESPALIER_DEVICE void block_reads_anothers(Thread at, Arguments<TestArguments> args,
                                          BlockMemory<TestMemory>) {
  if (at.block_x == 0) args.y[at.index] = 1;
  if (at.block_x == 1 && at.index == 5) args.y[40] = args.y[7];
}

TEST_F(Emulated, FindsABlockThatReadsWhatAnotherWrote) {
  EXPECT_THAT(error(block_reads_anothers, {.blocks_x = 2}),
              HasSubstr("block (1, 0), thread 5: reads element 7 of y, which another block wrote"));
}

ESPALIER_DEVICE void half_of_the_block_waits(Thread at, Arguments<TestArguments>,
                                             BlockMemory<TestMemory>) {
  if (at.index < 40) barrier();
}

TEST_F(Emulated, FindsABarrierThatNotAllThreadsReach) {
  const std::string message = error(half_of_the_block_waits);
  EXPECT_THAT(message, HasSubstr("probe: block (0, 0), thread 0: waits at barrier of "
                                 "emulated_test.cc:"));
  EXPECT_THAT(message, HasSubstr(", but thread 40 has ended"));
}

ESPALIER_DEVICE void two_barriers(Thread at, Arguments<TestArguments>, BlockMemory<TestMemory>) {
  if (at.index < 32) {
    barrier();
  } else {
    barrier();
  }
}

TEST_F(Emulated, FindsThreadsAtDifferentBarriers) {
  EXPECT_THAT(error(two_barriers), HasSubstr("but thread 32 waits at barrier of"));
}

ESPALIER_DEVICE void some_lanes_shuffle(Thread at, Arguments<TestArguments> args,
                                        BlockMemory<TestMemory>) {
  if (lane_of(at) < 8) args.y[at.index] = shuffle_xor(1.0f, 1);
}

TEST_F(Emulated, FindsAWarpOperationWithoutSomeLanes) {
  EXPECT_THAT(error(some_lanes_shuffle),
              HasSubstr("thread 0: waits at shuffle_xor of emulated_test.cc"));
}

ESPALIER_DEVICE void one_too_far(Thread at, Arguments<TestArguments> args,
                                 BlockMemory<TestMemory>) {
  args.y[at.index] = args.x[at.index + 1];
}

TEST_F(Emulated, FindsAGlobalIndexOffByOne) {
  EXPECT_EQ(error(one_too_far),
            "probe: block (0, 0), thread 63: reads element 64 of x, which has 64");
}

ESPALIER_DEVICE void one_too_far_in_shared(Thread at, Arguments<TestArguments> args,
                                           BlockMemory<TestMemory> m) {
  m->values[at.index + 1] = args.x[at.index];
}

TEST_F(Emulated, FindsASharedIndexOffByOneInsideTheStruct) {
  EXPECT_EQ(error(one_too_far_in_shared),
            "probe: block (0, 0), thread 63: touches element 64 of a shared array, which has 64");
}

ESPALIER_DEVICE void before_the_first(Thread at, Arguments<TestArguments> args,
                                      BlockMemory<TestMemory>) {
  args.y[at.index] = args.x[at.index - 1];
}

TEST_F(Emulated, FindsAnIndexBelowZero) {
  EXPECT_THAT(error(before_the_first), HasSubstr("thread 0: reads element 4294967295 of x"));
}

ESPALIER_DEVICE void reads_unwritten_shared(Thread at, Arguments<TestArguments> args,
                                            BlockMemory<TestMemory> m) {
  if (at.block_x == 0) m->values[at.index] = 1;
  barrier();
  args.y[at.index] = m->values[at.index];
}

TEST_F(Emulated, FindsSharedMemoryThatNobodyWroteInThisBlock) {
  EXPECT_EQ(error(reads_unwritten_shared, {.blocks_x = 2, .threads = 32}),
            "probe: block (1, 0), thread 0: reads element 0 of shared memory, which nobody wrote");
}

ESPALIER_DEVICE void adds_to_the_output(Thread at, Arguments<TestArguments> args,
                                        BlockMemory<TestMemory>) {
  args.y[at.index] += 1;
}

TEST_F(Emulated, FindsAnOutputThatIsReadBeforeItIsWritten) {
  EXPECT_THAT(error(adds_to_the_output), HasSubstr("reads element 0 of y, which nobody wrote"));
}

ESPALIER_DEVICE void reads_a_null_pointer(Thread at, Arguments<TestArguments> args,
                                          BlockMemory<TestMemory>) {
  const Global<const float> none = nullptr;
  args.y[at.index] = none[0];
}

TEST_F(Emulated, FindsANullPointer) {
  EXPECT_THAT(error(reads_a_null_pointer), HasSubstr("reads element 0 of a null pointer"));
}

ESPALIER_DEVICE void leaves_a_gap(Thread at, Arguments<TestArguments> args,
                                  BlockMemory<TestMemory>) {
  if (at.index != 9) args.y[at.index] = 0;
}

TEST_F(Emulated, ShowsOutputsThatWereNotWritten) {
  ASSERT_TRUE(run(leaves_a_gap));
  EXPECT_EQ(y_->first_unwritten(), 9 * sizeof(float));
  EXPECT_TRUE(std::isnan(y_->values<float>()[9]));
}

// Six numbers a thread.
ESPALIER_DEVICE void uses_the_warp(Thread at, Arguments<TestArguments> args,
                                   BlockMemory<TestMemory> m) {
  const float value = args.x[at.index];
  const Global<float> y = args.y + at.index * 6;
  y[0] = warp_sum(value);
  y[1] = shuffle(value, 3);
  const float below = shuffle_down(value, 2);  // nothing in the last two lanes
  y[2] = lane_of(at) < 30 ? below : 0;
  y[3] = ballot(lane_of(at) % 2 == 0) == 0x55555555u && any(lane_of(at) == 7) && !any(false);
  y[4] = block_sum(at, value, m->warps);
  y[5] = block_max(at, value, m->warps);
}

TEST_F(Emulated, GivesLanesTheValuesOfOthers) {
  ASSERT_TRUE(run(uses_the_warp, {.threads = 64}, 6 * 64));
  for (int i = 0; i < 64; ++i) {
    const int first = i / 32 * 32;
    const auto from_two_below = static_cast<float>(i % 32 < 30 ? i + 2 : 0);
    EXPECT_THAT(y_->values<float>().subspan(static_cast<std::size_t>(i) * 6, 6),
                testing::ElementsAre(first * 32 + 496, first + 3, from_two_below, 1, 2016, 63))
        << i;
  }
}

TEST_F(Emulated, RefusesGridsThatNoGpuRuns) {
  for (const Grid grid : {Grid{.threads = 0}, Grid{.threads = 33}, Grid{.threads = 2048},
                          Grid{.blocks_x = 0}, Grid{.blocks_y = 70000}}) {
    EXPECT_THAT(error(mirror, grid), HasSubstr("which no GPU runs"));
  }
}

// Fills stack until there is none.
std::uint32_t descend(std::uint32_t depth) {  // NOLINT(misc-no-recursion)
  volatile char frame[1024] = {};
  frame[depth % 1024] = 1;
  return depth == 0 ? 0 : descend(depth - 1) + static_cast<std::uint32_t>(frame[0]);
}
void recurses(Thread at, const TestArguments& args, TestMemory*) {
  args.y[at.index] = static_cast<float>(descend(10000));
}

TEST_F(Emulated, EndsAtTheGuardPageWhereAStackOverflows) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH((void)run(recurses), "");
}

}  // namespace
}  // namespace espalier::gpu::emulated
