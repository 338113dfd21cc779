#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace espalier {
namespace {

// Every index is visited once, in the part that it belongs to.
void expect_split(ThreadPool& pool, std::size_t count) {
  std::vector<int> visits(count, 0);
  std::vector<std::size_t> part_of(count, 0);
  pool.parallel_for(count, [&](std::size_t begin, std::size_t end, std::size_t part) {
    for (std::size_t i = begin; i < end; ++i) {
      ++visits[i];
      part_of[i] = part;
    }
  });
  EXPECT_EQ(visits, std::vector<int>(count, 1));
  for (std::size_t i = 0; count > 1 && i < count; ++i) {
    const std::size_t t = part_of[i];
    EXPECT_GE(i, count * t / pool.threads());
    EXPECT_LT(i, count * (t + 1) / pool.threads());
  }
}

TEST(ThreadPool, SplitsEveryCount) {
  for (const std::size_t threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t count : {0, 1, 2, 3, 5, 8, 100, 1001}) expect_split(pool, count);
  }
}

TEST(ThreadPool, UsesTheProcessorsByDefault) {
  const ThreadPool pool(0);
  EXPECT_EQ(pool.threads(), std::max(1u, std::thread::hardware_concurrency()));
}

TEST(ThreadPool, OneThreadRunsInline) {
  ThreadPool pool(1);
  const auto caller = std::this_thread::get_id();
  pool.parallel_for(10, [&](std::size_t begin, std::size_t end, std::size_t thread) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(begin, 0u);
    EXPECT_EQ(end, 10u);
    EXPECT_EQ(thread, 0u);
  });
}

// What one loop wrote is seen by the next, whichever thread reads it.
TEST(ThreadPool, ManyLoopsFollowEachOther) {
  for (const std::size_t threads : {2, 5}) {
    ThreadPool pool(threads);
    std::vector<long> values(64, 1);
    for (int loop = 0; loop < 2000; ++loop) {
      std::vector<long> next(values.size());
      pool.parallel_for(values.size(), [&](std::size_t begin, std::size_t end, std::size_t) {
        for (std::size_t i = begin; i < end; ++i) next[i] = values[values.size() - 1 - i] + 1;
      });
      values.swap(next);
    }
    EXPECT_EQ(values, std::vector<long>(64, 2001));
  }
}

// Workers that went to sleep wake up again.
TEST(ThreadPool, WorksAfterAPause) {
  ThreadPool pool(3);
  for (int i = 0; i < 3; ++i) {
    expect_split(pool, 50);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// A part that nobody has begun is done by the caller; one that was begun is waited for.
TEST(ThreadPool, UnevenParts) {
  ThreadPool pool(4);
  std::vector<long> sums(4, 0);
  for (int loop = 0; loop < 500; ++loop) {
    pool.parallel_for(4, [&](std::size_t begin, std::size_t, std::size_t part) {
      volatile long spent = 0;
      for (std::size_t i = 0; i < (begin + static_cast<std::size_t>(loop)) % 4 * 1000; ++i) {
        spent = spent + 1;
      }
      sums[part] += static_cast<long>(begin);
    });
  }
  EXPECT_EQ(sums, (std::vector<long>{0, 500, 1000, 1500}));
}

TEST(ThreadPool, EndsWithoutHavingWorked) {
  for (int i = 0; i < 20; ++i) const ThreadPool pool(4);
}

}  // namespace
}  // namespace espalier
