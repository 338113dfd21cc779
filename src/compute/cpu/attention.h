// Attention on the CPU for prefill and decode: keys and values are read in tiles of positions, once
// for all query heads that share them and all rows of a block, with the online softmax of
// FlashAttention (Dao et al., 2022).
//
// Tiles and spans begin at fixed positions of the sequence, so a row's sums are taken in an order
// that depends on its position and window alone.
#pragma once

#include <cstddef>
#include <span>

#include "base/thread_pool.h"
#include "compute/ops.h"

namespace espalier::cpu {

// Ops::attention. Tolerance class: float32 arithmetic on the cached values.
void attention(ThreadPool& pool, compute::Workspace& workspace, std::span<const compute::Row> rows,
               const float* queries, const compute::KvView& cache,
               const compute::Attention& attention, float* y);

// Positions of a tile, and of a span: the part of a sequence that one thread takes when there are
// few rows. A span is a whole number of tiles.
inline constexpr std::size_t kTilePositions = 32;
inline constexpr std::size_t kSpanPositions = 512;

// Rows of a sequence that share a tile.
inline constexpr std::size_t kBlockRows = 8;

// The softmax-weighted sum over some positions, for one query: `head_dim` values rounded up to
// 16, then the highest score and the sum of the weights relative to it.
struct PartialSum {
  std::size_t values;  // padded
  [[nodiscard]] std::size_t size() const { return values + 16; }
  [[nodiscard]] std::size_t highest() const { return values; }
  [[nodiscard]] std::size_t weight() const { return values + 1; }
};

// One call of the kernel: rows of one sequence against one KV head and one span of its positions.
struct AttentionBlock {
  std::span<const compute::Row> rows;  // at most kBlockRows
  const float* queries;                // [rows, heads, head_dim]
  const compute::KvView& cache;
  const compute::Attention& attention;
  std::size_t kv_head;
  std::size_t span;
};

struct AttentionKernels {
  // Floats of scratch memory that `attend` needs, aligned to 64 bytes.
  std::size_t (*scratch)(const compute::Attention& attention);

  // Fills `sums` [rows, heads / kv_heads] with partial sums.
  void (*attend)(const AttentionBlock& block, float* scratch, float* sums);

  // total = the partial sum over the positions of both.
  void (*merge)(PartialSum layout, const float* sum, float* total);
};

// Those of the best instruction set of this machine.
[[nodiscard]] const AttentionKernels& attention_kernels();

}  // namespace espalier::cpu
