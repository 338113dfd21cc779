// Timing a model and single operators. A result is the median of several repeats with its spread;
// what it is compared with, the read bandwidth of memory, is measured beside it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "compute/ops.h"
#include "measure/profiled_ops.h"
#include "model/model.h"
#include "pack/matrix.h"

namespace espalier::measure {

struct Spread {
  double median = 0, least = 0, most = 0;
};

// Errors never: an empty list gives zeros.
[[nodiscard]] Spread spread(std::vector<double> samples);

struct ModelBench {
  Spread prefill_seconds;  // of all prompt tokens
  Spread decode_seconds;   // of all decoded tokens
  double bytes_per_token;  // of weights that one decoded token's products read
};

struct ModelBenchOptions {
  std::size_t prompt_tokens = 512;
  std::size_t decode_tokens = 128;
  std::size_t depth = 0;  // tokens that are in the cache before
  int repeats = 5;
};

// Runs prompt and decode in turn, `repeats` times after one round that is not counted. Errors: more
// positions than the cache can hold.
[[nodiscard]] Result<ModelBench> bench_model(const model::Model& model, compute::Ops& ops,
                                             compute::KvType cache_type,
                                             const ModelBenchOptions& options);

// What each operator did in a prefill and in decoding, in the order of Operator.
struct Profile {
  std::vector<OperatorAccount> prefill, decode;
};

// Runs prompt and decode once each, after a round that is not counted. Errors: as bench_model.
[[nodiscard]] Result<Profile> profile_model(const model::Model& model, compute::Ops& ops,
                                            compute::KvType cache_type,
                                            const ModelBenchOptions& options);

// Whether random_matrix makes weights in it.
[[nodiscard]] bool can_make_weights(const pack::Format& format);

// A matrix of random weights in any format: values are near ±1/√cols.
[[nodiscard]] Result<pack::PackedMatrix> random_matrix(const pack::Format& format,
                                                       std::uint64_t rows, std::uint64_t cols);

struct ProjectBench {
  Spread seconds;
  std::size_t bytes;  // of one matrix
  double bandwidth;   // bytes a second that reading alone reaches
};

// The product of `rows` rows with a matrix of that format and shape, once with each of several
// copies in turn, which together are too large for most caches.
[[nodiscard]] Result<ProjectBench> bench_project(compute::Ops& ops, std::size_t threads,
                                                 const pack::Format& format, std::uint64_t outputs,
                                                 std::uint64_t inputs, std::size_t rows,
                                                 int repeats);

}  // namespace espalier::measure
