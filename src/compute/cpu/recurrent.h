// The operators of gated delta nets on the CPU: see Ops::causal_convolution and Ops::delta_rule.
//
// Prefill walks the recurrence itself: a tile of a head's matrix takes 8 KiB and does not depend on
// the others, so that a thread keeps it in the first-level cache while all rows pass through. That
// is as much arithmetic as the chunked form of Yang et al. (2024), section 3.3, has, without its
// triangular solves, and exact: a row's bits are the same in prefill and decode.
#pragma once

#include <cstddef>
#include <span>

#include "base/thread_pool.h"
#include "compute/ops.h"

namespace espalier::cpu {

// Tolerance class: float32 arithmetic, against the reference's double.
void causal_convolution(ThreadPool& pool, std::span<const compute::Row> rows, const float* x,
                        const compute::CausalConvolution& convolution,
                        const compute::RecurrentView& state, float* y);
void delta_rule(ThreadPool& pool, compute::Workspace& workspace, std::span<const compute::Row> rows,
                const float* queries_keys, const float* values, const float* b, const float* a,
                const compute::DeltaRule& rule, const compute::RecurrentView& state, float* y);

// One row's numbers for a tile of a matrix.
struct DeltaStep {
  const float* query;  // [key_dim]
  const float* key;    // [key_dim]
  const float* value;  // [columns]
  std::size_t key_dim;
  std::size_t columns;  // of the tile that are used, 1 to DeltaRule::kTile
  float keep;
  float write;
  float scale;
};

struct RecurrentKernels {
  // One row of `count` channels: shifts x into `before` [kernel − 1, channels], of which it uses
  // the first `count` columns, as of `weight` [kernel, channels]. y may be x.
  void (*convolve)(const float* x, const float* weight, std::size_t kernel, std::size_t channels,
                   std::size_t count, float* before, float* y);

  // One row through a tile [key_dim, DeltaRule::kTile].
  void (*delta)(const DeltaStep& step, float* tile, float* y);
};

// Those of the best instruction set of this machine.
[[nodiscard]] const RecurrentKernels& recurrent_kernels();

}  // namespace espalier::cpu
