// A fixed set of threads for loops that are short and many: a layer of a model is a dozen loops of
// some microseconds to milliseconds each.
//
// A loop is split by its count alone: part t of T is the indices [count·t/T, count·(t+1)/T). Thread
// t runs part t, unless it has not come to it when the caller is done with its own: on a busy
// machine the caller does the rest rather than wait until the others are scheduled. Nothing is
// allocated per loop. Waiting threads spin for some microseconds, because the next loop usually
// starts at once, and then sleep.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
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

  // Calls body(begin, end, part) once for each part that is not empty, and returns when all are
  // done. No two calls with the same part run at once, so a part may have memory of its own. `body`
  // must not throw, nor use the pool. One caller at a time.
  template <typename Body>
  void parallel_for(std::size_t count, const Body& body) {
    if (workers_.empty() || count <= 1) {
      if (count != 0) body(std::size_t{0}, count, std::size_t{0});
      return;
    }
    const auto call = [](const void* erased, std::size_t begin, std::size_t end, std::size_t part) {
      (*static_cast<const Body*>(erased))(begin, end, part);
    };
    run({&body, call, count});
  }

 private:
  struct Loop {
    const void* body = nullptr;
    void (*call)(const void* body, std::size_t begin, std::size_t end, std::size_t part) = nullptr;
    std::size_t count = 0;
  };

  // The last loop in which a part was taken.
  struct alignas(64) Claim {
    std::atomic<std::uint32_t> loop{0};
  };

  void run(const Loop& loop);
  void work(std::size_t part);

  // Runs `part` of loop number `loop` if nobody has taken it, and returns whether it did.
  bool take_part(std::uint32_t loop, std::size_t part);
  void run_part(std::size_t part) const;

  // Waits until `value` is no longer `old`; returns the new value.
  std::uint32_t await_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) const;

  Loop loop_;      // changes only while no part is running
  int spins_ = 0;  // how often to look before going to sleep
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<std::uint32_t> started_{0};  // the number of the loop; wakes the workers
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};  // parts of it, but for the caller's own
  std::unique_ptr<Claim[]> claims_;
  std::vector<std::thread> workers_;
};

}  // namespace espalier
