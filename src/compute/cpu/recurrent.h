// The operators of gated delta nets on the CPU: see Ops::causal_convolution and Ops::delta_rule.
//
// The delta rule is computed in chunks: Yang et al., Parallelizing Linear Transformers with the
// Delta Rule over Sequence Length (2024), section 3, with the decay of Gated Delta Networks (2024).
// Within a chunk that begins with the matrix S, row t writes k_t u_tᵀ, decayed by later rows, where
//   u_t = β_t (v_t − γ_t Sᵀk_t − Σ_{j<t} Γ_tj (k_t·k_j) u_j)
//   y_t = scale · (γ_t Sᵀq_t + Σ_{j≤t} Γ_tj (q_t·k_j) u_j)
// with Γ_tj = the product of what rows j + 1 to t keep, γ_t = that of all rows to t. So S is read
// once for all rows of a chunk, and written once at its end. Chunks begin at multiples of
// DeltaRule::kChunk, whatever the batch, and every sum goes over k or j in order: a row's bits are
// the same in prefill and decode, which adds a row to the chunk that the memory holds.
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

// Rows of one sequence and value head that follow each other within a chunk, and what they read
// and change.
struct DeltaStep {
  const float* queries;  // [count, key_dim], rows key_stride apart
  const float* keys;
  std::size_t key_stride;
  const float* values;  // [count, value_dim], rows value_stride apart, as those of y
  float* y;
  std::size_t value_stride;
  std::size_t key_dim;
  std::size_t value_dim;
  std::size_t offset;  // of the first row in its chunk
  std::size_t count;
  const float* keep;   // [count]
  const float* write;  // [count]
  float scale;
  float* matrix;
  compute::DeltaRule::Chunk chunk;
};

struct RecurrentKernels {
  // One row of `count` channels: shifts x into `before` [kernel − 1, channels], of which it uses
  // the first `count` columns, as of `weight` [kernel, channels]. y may be x.
  void (*convolve)(const float* x, const float* weight, std::size_t kernel, std::size_t channels,
                   std::size_t count, float* before, float* y);

  void (*delta)(const DeltaStep& step);
};

// Those of the best instruction set of this machine.
[[nodiscard]] const RecurrentKernels& recurrent_kernels();

}  // namespace espalier::cpu
