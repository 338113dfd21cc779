// Work in order on the current GPU: streams, events that time it, graphs that repeat it.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <type_traits>

#include "base/bytes.h"
#include "base/result.h"

namespace espalier::gpu::cuda {

// Gives a handle of CUDA's back.
template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const {
    static_cast<void>(kDestroy(handle));
  }
};
template <typename Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;

// Work that is done in the order in which it was added, while the host goes on.
class Stream {
 public:
  static Result<Stream> create();

  [[nodiscard]] cudaStream_t get() const { return stream_.get(); }

  // Waits for all of it. Errors: of anything that was added, kernels too.
  [[nodiscard]] Status wait();

 private:
  Owned<cudaStream_t, cudaStreamDestroy> stream_;
};

// A point in a stream.
class Event {
 public:
  static Result<Event> create();

  // It is reached when all that is in the stream now is done.
  [[nodiscard]] Status record(Stream& stream);
  [[nodiscard]] Status wait();

  // After both were reached.
  [[nodiscard]] static Result<double> seconds_between(const Event& begin, const Event& end);

 private:
  Owned<cudaEvent_t, cudaEventDestroy> event_;
};

// Work that was recorded once and can be added to streams again and again for the price of one
// launch. It uses the memory that it was recorded with.
class Graph {
 public:
  // `add_work` adds to `stream`, but nothing runs yet. Errors: its own, and work that graphs do not
  // take.
  static Result<Graph> capture(Stream& stream, const std::function<Status()>& add_work);

  [[nodiscard]] Status replay(Stream& stream) const;

 private:
  Owned<cudaGraphExec_t, cudaGraphExecDestroy> graph_;
};

}  // namespace espalier::gpu::cuda
