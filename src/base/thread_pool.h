// A fixed set of threads for loops that are short and many: a layer of a model is a dozen loops of
// some microseconds to milliseconds each.
//
// Threads take pieces of a loop from its end, each a fixed share of what is left (guided
// self-scheduling: Polychronopoulos & Kuck, 1987): large ones first, so that there are few, and
// small ones last, so that all end at about the same time even where others use the processors too.
// Which thread gets a piece is a matter of chance, so nothing may depend on it. Nothing is
// allocated per loop. Waiting threads spin for some microseconds, because the next loop usually
// starts at once, and then sleep.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace espalier {

class ThreadPool {
 public:
  // `threads` counts the caller, who works as thread 0; 0 means one per processor that this process
  // may use.
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] std::size_t threads() const { return workers_.size() + 1; }

  // Calls body(begin, end, thread) for pieces of [0, count), which has fewer than 2^32 indices, and
  // returns when all are done. No two calls with the same thread, one of threads(), run at once, so
  // each may have memory of its own. `body` must not throw, nor use the pool. One caller at a time.
  template <typename Body>
  void parallel_for(std::size_t count, const Body& body) {
    if (workers_.empty() || count <= 1) {
      if (count != 0) body(std::size_t{0}, count, std::size_t{0});
      return;
    }
    const auto call = [](const void* erased, std::size_t begin, std::size_t end,
                         std::size_t thread) {
      (*static_cast<const Body*>(erased))(begin, end, thread);
    };
    run({&body, call, count});
  }

 private:
  struct Loop {
    const void* body = nullptr;
    void (*call)(const void* body, std::size_t begin, std::size_t end,
                 std::size_t thread) = nullptr;
    std::size_t count = 0;
  };

  void run(const Loop& loop);
  void work(std::size_t thread);

  // Runs pieces of loop `number` until none is left, if that is the loop under way.
  void take_pieces(std::uint32_t number, std::size_t thread);

  // Waits until `value` is no longer `old`; returns the new value.
  std::uint32_t await_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) const;

  Loop loop_;      // changes only while no piece of it is left
  int spins_ = 0;  // how often to look before going to sleep
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<std::uint32_t> started_{0};  // the number of the loop; wakes the workers
  alignas(64) std::atomic<std::uint64_t> left_{0};  // its number · 2^32 + indices nobody has taken
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};  // its indices that are not done
  std::vector<std::thread> workers_;
};

}  // namespace espalier
