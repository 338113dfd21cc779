#include "compute/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "compute/cpu/kv_kernels.h"
#include "compute/kv_codec.h"

namespace espalier::cpu {
namespace {

using compute::Attention;
using compute::Row;

// Rows [first, first + count) are of one sequence.
struct BlockOfRows {
  std::size_t first;
  std::size_t count;
};

std::size_t spans(const Row& row) {
  return (static_cast<std::size_t>(row.position) + kSpanPositions) / kSpanPositions;
}

// `sink`: the weight of the head's sink relative to the highest score.
void divide(PartialSum layout, std::size_t head_dim, const float* sum, float sink, float* y) {
  const float inverse = 1 / (sum[layout.weight()] + sink);
  for (std::size_t i = 0; i < head_dim; ++i) y[i] = sum[i] * inverse;
}

// `x` as what the cache holds is turned, in pieces of `size`.
float* turned(ThreadPool& pool, compute::Workspace& workspace, std::size_t size, std::size_t count,
              const float* x) {
  float* y = workspace.floats(count);
  pool.parallel_for(count / size, [&](std::size_t begin, std::size_t end, std::size_t) {
    std::copy(x + begin * size, x + end * size, y + begin * size);
    for (std::size_t i = begin; i < end; ++i) kv_kernels().rotate(size, y + i * size);
  });
  return y;
}

}  // namespace

void attention(ThreadPool& pool, compute::Workspace& workspace, std::span<const Row> rows,
               const float* queries, const compute::KvView& cache, const Attention& attention,
               float* y) {
  const compute::Workspace::Frame frame(workspace);
  const AttentionKernels& kernels = attention_kernels();
  const std::size_t heads = attention.heads;
  const std::size_t group = heads / attention.kv_heads;
  const std::size_t head_dim = attention.head_dim;
  const PartialSum layout = {(head_dim + 15) / 16 * 16};
  const std::size_t rotation = compute::kv_rotation(cache.type, head_dim);
  if (rotation != 0)
    queries = turned(pool, workspace, rotation, rows.size() * heads * head_dim, queries);

  auto* blocks = reinterpret_cast<BlockOfRows*>(
      workspace.floats(rows.size() * sizeof(BlockOfRows) / sizeof(float)));
  std::size_t block_count = 0;
  std::size_t most_spans = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    most_spans = std::max(most_spans, spans(rows[r]));
    if (block_count != 0) {
      BlockOfRows& last = blocks[block_count - 1];
      if (rows[r].sequence == rows[last.first].sequence && last.count < kBlockRows) {
        ++last.count;
        continue;
      }
    }
    blocks[block_count++] = {r, 1};
  }

  // With few rows, spans are work of their own; their sums are kept and merged afterwards. With
  // many, a thread takes all spans of a block. Either way they are merged in the order of
  // positions.
  const bool split_spans = block_count * attention.kv_heads < 4 * pool.threads();
  const std::size_t kept = split_spans ? most_spans : 1;
  const std::size_t scratch_size = kernels.scratch(attention);
  float* all_scratch = workspace.floats(pool.threads() * scratch_size);
  float* totals = workspace.floats(rows.size() * heads * layout.size());
  const std::size_t block_sums = kBlockRows * group * layout.size();
  float* all_sums = workspace.floats(
      (split_spans ? block_count * attention.kv_heads : pool.threads()) * kept * block_sums);

  const auto total_of = [&](const BlockOfRows& block, std::size_t kv_head, std::size_t i) {
    const std::size_t row = block.first + i / group;
    return totals + (row * heads + kv_head * group + i % group) * layout.size();
  };
  const auto merge = [&](const BlockOfRows& block, std::size_t kv_head, std::size_t span,
                         const float* sums) {
    for (std::size_t i = 0; i < block.count * group; ++i) {
      float* total = total_of(block, kv_head, i);
      if (span == 0) {
        std::memcpy(total, sums + i * layout.size(), layout.size() * sizeof(float));
      } else {
        kernels.merge(layout, sums + i * layout.size(), total);
      }
    }
  };
  const auto finish = [&](const BlockOfRows& block, std::size_t kv_head) {
    for (std::size_t i = 0; i < block.count * group; ++i) {
      const std::size_t head = (block.first + i / group) * heads + kv_head * group + i % group;
      const float* total = total_of(block, kv_head, i);
      const float sink = attention.sinks.empty()
                             ? 0
                             : std::exp(attention.sinks[head % heads] - total[layout.highest()]);
      divide(layout, head_dim, total, sink, y + head * head_dim);
      for (std::size_t j = 0; rotation != 0 && j < head_dim; j += rotation) {
        kv_kernels().rotate(rotation, y + head * head_dim + j);
      }
    }
  };
  const auto attend = [&](const BlockOfRows& block, std::size_t kv_head, std::size_t span,
                          std::size_t thread, float* sums) {
    kernels.attend({.rows = rows.subspan(block.first, block.count),
                    .queries = queries + block.first * heads * head_dim,
                    .cache = cache,
                    .attention = attention,
                    .kv_head = kv_head,
                    .span = span},
                   all_scratch + thread * scratch_size, sums);
  };

  if (split_spans) {
    const std::size_t parts = attention.kv_heads * kept;
    pool.parallel_for(block_count * parts, [&](std::size_t begin, std::size_t end,
                                               std::size_t thread) {
      for (std::size_t i = begin; i < end; ++i) {
        attend(blocks[i / parts], i % parts / kept, i % kept, thread, all_sums + i * block_sums);
      }
    });
    for (std::size_t i = 0; i < block_count * parts; ++i) {
      merge(blocks[i / parts], i % parts / kept, i % kept, all_sums + i * block_sums);
      if (i % kept == kept - 1) finish(blocks[i / parts], i % parts / kept);
    }
    return;
  }
  pool.parallel_for(block_count * attention.kv_heads, [&](std::size_t begin, std::size_t end,
                                                          std::size_t thread) {
    float* sums = all_sums + thread * block_sums;
    for (std::size_t i = begin; i < end; ++i) {
      // Later rows have more to do: taking blocks from both ends in turn evens out the threads.
      const std::size_t turn = i / attention.kv_heads;
      const BlockOfRows& block = blocks[turn % 2 == 0 ? turn / 2 : block_count - 1 - turn / 2];
      const std::size_t kv_head = i % attention.kv_heads;
      for (std::size_t span = 0; span < most_spans; ++span) {
        attend(block, kv_head, span, thread, sums);
        merge(block, kv_head, span, sums);
      }
      finish(block, kv_head);
    }
  });
}

}  // namespace espalier::cpu
