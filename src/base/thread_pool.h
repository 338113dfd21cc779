// A fixed set of threads for loops that are short and many: a layer of a model is a dozen loops of
// some microseconds to milliseconds each.
//
// A loop is split by its count alone: thread t of T runs the indices [count·t/T, count·(t+1)/T).
// Nothing is allocated per loop. Waiting threads spin for some microseconds, because the next loop
// usually starts at once, and then sleep.
#pragma once

#include <atomic>
#include <cstddef>
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

  // Calls body(begin, end, thread) with ranges that together are [0, count), each on its thread,
  // and returns when all are done. Threads whose range is empty are not called. `body` must not
  // throw, nor use the pool. One caller at a time.
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
  void run_part(std::size_t thread) const;
  void work(std::size_t thread);

  // Waits until `value` is no longer `old`; returns the new value.
  int await_change(const std::atomic<int>& value, int old) const;

  Loop loop_;                                // written while the workers wait
  bool stop_ = false;                        // likewise
  int spins_ = 0;                            // how often to look before going to sleep
  alignas(64) std::atomic<int> started_{0};  // counts loops; a change wakes the workers
  alignas(64) std::atomic<int> working_{0};  // workers that have not finished the current loop
  std::vector<std::thread> workers_;
};

}  // namespace espalier
