// Operators without packed weights as a benchmark sees them: arrays to upload, how to launch, and
// what the oracle computes.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compute/gpu/cuda/memory.h"
#include "measure/gpu_bench.h"

namespace espalier::measure {

// One of the arrays that a launch reads or writes: in the beginning its content, or poison.
struct Array {
  std::vector<std::byte> content;
  std::size_t bytes = 0;  // of the content where there is some
};

template <typename T>
[[nodiscard]] Array array_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {{bytes.begin(), bytes.end()}, bytes.size()};
}
[[nodiscard]] inline Array output_of(std::size_t floats) { return {{}, floats * sizeof(float)}; }

// Where the arrays of one launch lie on the GPU, in their order.
using Places = std::vector<std::byte*>;

template <typename T>
[[nodiscard]] T* place(const Places& places, std::size_t array) {
  return reinterpret_cast<T*>(places[array]);
}

struct SmallOperator {
  std::string kernel;
  std::vector<Array> arrays;
  std::size_t result = 0;       // which of them, floats, is compared with `expected`
  std::vector<float> expected;  // or nothing, where no check is wanted
  double allowed = 0;           // Difference::allowed
  double bytes = 0;
  double operations = 0;
  std::function<Status(gpu::cuda::Stream&, const Places&)> enqueue;
};

enum class Oracle { kLeftOut, kComputed };

// The operator of that name for one shape. Errors: sizes that its kernel does not take.
[[nodiscard]] Result<SmallOperator> small_operator(std::string_view name, const std::string& format,
                                                   const Shape& shape, std::uint64_t rows,
                                                   Oracle oracle);

}  // namespace espalier::measure
