// Timing single operators on a GPU, against what its memory and its matrix units allow. The same in
// a build without CUDA, which says that it cannot.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compute/gpu/devices.h"
#include "measure/bench.h"

namespace espalier::measure {

// Of project perhaps of several matrices, one after the other, that multiply the same rows.
using Shape = std::vector<std::uint64_t>;

struct GpuBenchOptions {
  int device = 0;
  std::string op = "project";        // a name of gpu_operators()
  std::vector<std::string> formats;  // of weights; attention: of the cache. Others have none
  std::vector<Shape> shapes;         // as the operator's entry says; empty: its usual one
  std::vector<std::uint64_t> rows = {1};
  std::string kernel;  // of project: the name of one, or empty for the fastest
  // Results against the oracle, in the same run; of products with more than 16 rows those of 16,
  // from the first to the last.
  bool check = false;
  bool every_kernel = false;  // of project: each that serves, instead of the one that is chosen
  int repeats = 20;
};

// An operator that can be timed.
struct GpuOperator {
  std::string_view name;
  std::string_view shape;  // what the numbers of its shape are: "OUTPUTSxINPUTS"
  Shape usual;
  std::vector<std::string> formats;  // that it takes; none: it has no format
  std::size_t most_parts = 1;        // matrices in a shape
};

// project takes all formats that weights can be made in, which its entry does not list.
[[nodiscard]] const std::vector<GpuOperator>& gpu_operators();

// What the GPU reaches, measured beside the operators.
struct GpuCeilings {
  double copy = 0;          // bytes read and written a second by a copy on the device
  double products = 0;      // operations a second of a bfloat16 matrix product by cuBLAS, or 0
  std::string no_products;  // why it was not measured
};

// How far a result is from the oracle's: ‖y − expected‖ / ‖expected‖. Infinite where an output was
// not written or is no number.
struct Difference {
  double found = 0;
  double allowed = 0;
};

// One operator on one shape.
struct GpuLine {
  std::string op, format, kernel;
  Shape shape;
  std::size_t parts = 1;  // matrices in the shape
  std::uint64_t rows = 0;
  Spread seconds;            // of one launch
  double bytes = 0;          // that it must move: each input read once, each output written once
  double operations = 0;     // multiplications and additions
  std::size_t copies = 0;    // of all its arrays, which are used in turn
  bool beyond_cache = true;  // together they are at least twice the size of the L2
  std::optional<Difference> difference;
  // Of products with many rows: cuBLAS alone, on a dense matrix of halves of that shape.
  std::optional<Spread> dense_seconds;
  // Of several matrices: their products one after the other.
  std::optional<Spread> apart_seconds;
};

struct GpuBench {
  gpu::Device device;
  GpuCeilings ceilings;
  std::vector<GpuLine> lines;
};

// Every format with every shape and number of rows. Errors: no such GPU, formats and shapes that
// there is no kernel for, not enough memory. A difference that is not allowed is no error.
[[nodiscard]] Result<GpuBench> bench_gpu(const GpuBenchOptions& options);

}  // namespace espalier::measure
