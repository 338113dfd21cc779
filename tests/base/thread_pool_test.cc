#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>

namespace espalier {
namespace {

// Every index is visited once, by a thread that does nothing else meanwhile.
void expect_split(ThreadPool& pool, std::size_t count) {
  std::vector<int> visits(count, 0);
  std::vector<std::atomic<int>> busy(pool.threads());
  pool.parallel_for(count, [&](std::size_t begin, std::size_t end, std::size_t thread) {
    ASSERT_LT(begin, end);
    ASSERT_LE(end, count);
    EXPECT_EQ(busy.at(thread)++, 0);
    for (std::size_t i = begin; i < end; ++i) ++visits[i];
    --busy[thread];
  });
  EXPECT_EQ(visits, std::vector<int>(count, 1));
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

// All is done at the return, however unlike the pieces are.
TEST(ThreadPool, UnevenPieces) {
  ThreadPool pool(4);
  std::vector<long> sums(9, 0);
  for (int loop = 0; loop < 500; ++loop) {
    pool.parallel_for(sums.size(), [&](std::size_t begin, std::size_t end, std::size_t) {
      for (std::size_t i = begin; i < end; ++i) {
        volatile long spent = 0;
        while (spent < (static_cast<long>(i) + loop) % 4 * 1000) spent = spent + 1;
        sums[i] += static_cast<long>(i);
      }
    });
  }
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], 500 * static_cast<long>(i));
}

// A thread that is held up keeps one piece; the others do the rest.
TEST(ThreadPool, OthersDoWhatASlowThreadCannot) {
  ThreadPool pool(2);
  std::atomic<std::size_t> done{0};
  pool.parallel_for(64, [&](std::size_t begin, std::size_t end, std::size_t) {
    // The first piece ends only when all others are done.
    while (end == 64 && done < begin) std::this_thread::yield();
    done += end - begin;
  });
  EXPECT_EQ(done, 64u);
}

TEST(ThreadPool, EndsWithoutHavingWorked) {
  for (int i = 0; i < 20; ++i) const ThreadPool pool(4);
}

}  // namespace
}  // namespace espalier
