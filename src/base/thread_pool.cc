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
  working_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
  run_part(0);
  int working = working_.load(std::memory_order_acquire);
  while (working != 0) working = await_change(working_, working);
}

void ThreadPool::run_part(std::size_t thread) const {
  const std::size_t begin = loop_.count * thread / threads();
  const std::size_t end = loop_.count * (thread + 1) / threads();
  if (begin != end) loop_.call(loop_.body, begin, end, thread);
}

void ThreadPool::work(std::size_t thread) {
  int started = 0;
  while (true) {
    started = await_change(started_, started);
    if (stop_) return;
    run_part(thread);
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
  }
}

int ThreadPool::await_change(const std::atomic<int>& value, int old) const {
  for (int i = 0; i < spins_; ++i) {
    const int now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace espalier
