#include "base/thread_pool.h"

#include <algorithm>

namespace espalier {
namespace {

// About 20 to 40 µs on current processors, longer than the gaps between the loops of one token.
constexpr int kSpins = 1000;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(std::size_t threads) {
  const std::size_t processors = std::max(1u, std::thread::hardware_concurrency());
  if (threads == 0) threads = processors;
  // With fewer processors than threads, spinning would keep the awaited thread from running.
  spins_ = threads <= processors ? kSpins : 0;
  workers_.reserve(threads - 1);
  for (std::size_t t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const Loop& loop) {
  loop_ = loop;
  const auto count = static_cast<std::uint32_t>(loop.count);
  const std::uint32_t number = started_.load(std::memory_order_relaxed) + 1;
  unfinished_.store(count, std::memory_order_relaxed);
  left_.store(std::uint64_t{number} << 32 | count, std::memory_order_release);
  started_.store(number, std::memory_order_release);
  started_.notify_all();
  take_pieces(number, 0);
  std::uint32_t unfinished = unfinished_.load(std::memory_order_acquire);
  while (unfinished != 0) unfinished = await_change(unfinished_, unfinished);
}

void ThreadPool::take_pieces(std::uint32_t number, std::size_t thread) {
  const auto share = static_cast<std::uint32_t>(2 * threads());
  std::uint32_t done = 0;
  std::uint64_t left = left_.load(std::memory_order_acquire);
  // A worker that wakes up late finds nothing left of its loop, or the number of a later one.
  while (left >> 32 == number) {
    const auto end = static_cast<std::uint32_t>(left);
    if (end == 0) break;
    const std::uint32_t piece = (end + share - 1) / share;
    if (!left_.compare_exchange_weak(left, left - piece, std::memory_order_acq_rel)) continue;
    loop_.call(loop_.body, end - piece, end, thread);
    done += piece;
    left = left_.load(std::memory_order_acquire);
  }
  if (done != 0 && unfinished_.fetch_sub(done, std::memory_order_acq_rel) == done) {
    unfinished_.notify_one();
  }
}

void ThreadPool::work(std::size_t thread) {
  std::uint32_t loop = 0;
  while (true) {
    loop = await_change(started_, loop);
    if (stop_) return;
    take_pieces(loop, thread);
  }
}

std::uint32_t ThreadPool::await_change(const std::atomic<std::uint32_t>& value,
                                       std::uint32_t old) const {
  for (int i = 0; i < spins_; ++i) {
    const std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace espalier
