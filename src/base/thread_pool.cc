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
  claims_ = std::make_unique<Claim[]>(threads);
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
  const auto workers = static_cast<std::uint32_t>(workers_.size());
  unfinished_.store(workers, std::memory_order_relaxed);
  const std::uint32_t number = started_.fetch_add(1, std::memory_order_release) + 1;
  started_.notify_all();
  run_part(0);
  for (std::size_t part = 1; part <= workers; ++part) {
    if (take_part(number, part)) unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  }
  std::uint32_t unfinished = unfinished_.load(std::memory_order_acquire);
  while (unfinished != 0) unfinished = await_change(unfinished_, unfinished);
}

bool ThreadPool::take_part(std::uint32_t loop, std::size_t part) {
  // A worker that wakes up late finds its part of that loop taken, and maybe of later ones too.
  std::uint32_t before = loop - 1;
  if (!claims_[part].loop.compare_exchange_strong(before, loop, std::memory_order_acq_rel)) {
    return false;
  }
  run_part(part);
  return true;
}

void ThreadPool::run_part(std::size_t part) const {
  const std::size_t begin = loop_.count * part / threads();
  const std::size_t end = loop_.count * (part + 1) / threads();
  if (begin != end) loop_.call(loop_.body, begin, end, part);
}

void ThreadPool::work(std::size_t part) {
  std::uint32_t loop = 0;
  while (true) {
    loop = await_change(started_, loop);
    if (stop_) return;
    if (take_part(loop, part) && unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      unfinished_.notify_one();
    }
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
