#include "compute/cpu/recurrent.h"

#include <algorithm>

#include "compute/delta_gates.h"

namespace espalier::cpu {
namespace {

using compute::CausalConvolution;
using compute::DeltaGates;
using compute::DeltaRule;
using compute::RecurrentView;
using compute::Row;

// Channels that a thread takes at a time: whole vectors of every instruction set.
constexpr std::size_t kChannelBlock = 64;

float* of_sequence(float* memory, std::size_t size, const Row& row) {
  return memory + static_cast<std::size_t>(row.sequence) * size;
}

// Rows of one sequence that follow each other within a chunk.
struct Stretch {
  std::size_t first;
  std::size_t count;
};

// Those that `rows` are, in order; returns how many.
std::size_t find_stretches(std::span<const Row> rows, Stretch* stretches) {
  std::size_t count = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto offset = static_cast<std::size_t>(rows[r].position) % DeltaRule::kChunk;
    const bool goes_on = r != 0 && offset != 0 && rows[r].sequence == rows[r - 1].sequence &&
                         rows[r].position == rows[r - 1].position + 1;
    if (!goes_on) stretches[count++] = {r, 0};
    ++stretches[count - 1].count;
  }
  return count;
}

}  // namespace

void causal_convolution(ThreadPool& pool, std::span<const Row> rows, const float* x,
                        const CausalConvolution& convolution, const RecurrentView& state,
                        float* y) {
  const RecurrentKernels& kernels = recurrent_kernels();
  const std::size_t channels = convolution.channels;
  const std::size_t blocks = (channels + kChannelBlock - 1) / kChannelBlock;
  pool.parallel_for(blocks, [&](std::size_t begin, std::size_t end, std::size_t) {
    const std::size_t first = begin * kChannelBlock;
    const std::size_t count = std::min(end * kChannelBlock, channels) - first;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      float* before = of_sequence(state.convolution, state.convolution_size, rows[r]) + first;
      if (rows[r].position == 0) {
        for (std::size_t j = 0; j + 1 < convolution.kernel; ++j) {
          std::fill_n(before + j * channels, count, 0.0f);
        }
      }
      kernels.convolve(x + r * channels + first, convolution.weight.data() + first,
                       convolution.kernel, channels, count, before, y + r * channels + first);
    }
  });
}

void delta_rule(ThreadPool& pool, compute::Workspace& workspace, std::span<const Row> rows,
                const float* queries_keys, const float* values, const float* b, const float* a,
                const DeltaRule& rule, const RecurrentView& state, float* y) {
  const compute::Workspace::Frame frame(workspace);
  auto* stretches = workspace.take<Stretch>(rows.size());
  const std::size_t count = find_stretches(rows, stretches);
  const std::size_t heads = rule.value_heads;
  const std::size_t row_keys = 2 * rule.key_heads * rule.key_dim;
  const std::size_t row_values = heads * rule.value_dim;
  // One head: all stretches in turn.
  const auto walk = [&](std::size_t head) {
    for (const Stretch& stretch : std::span(stretches, count)) {
      const Row& first = rows[stretch.first];
      float* memory = of_sequence(state.memory, state.memory_size, first);
      float* matrix = memory + head * rule.matrix_size();
      if (first.position == 0) std::fill_n(matrix, rule.matrix_size(), 0.0f);
      float keep[DeltaRule::kChunk];
      float write[DeltaRule::kChunk];
      for (std::size_t i = 0; i < stretch.count; ++i) {
        const std::size_t at = (stretch.first + i) * heads + head;
        const DeltaGates gates = compute::delta_gates(rule, head, b[at], a[at]);
        keep[i] = static_cast<float>(gates.keep);
        write[i] = static_cast<float>(gates.write);
      }
      const float* queries =
          queries_keys + stretch.first * row_keys + rule.key_head(head) * rule.key_dim;
      const std::size_t at = stretch.first * row_values + head * rule.value_dim;
      recurrent_kernels().delta(
          {.queries = queries,
           .keys = queries + rule.key_heads * rule.key_dim,
           .key_stride = row_keys,
           .values = values + at,
           .y = y + at,
           .value_stride = row_values,
           .key_dim = rule.key_dim,
           .value_dim = rule.value_dim,
           .offset = static_cast<std::size_t>(first.position) % DeltaRule::kChunk,
           .count = stretch.count,
           .keep = keep,
           .write = write,
           .scale = rule.scale,
           .matrix = matrix,
           .chunk = rule.chunk(memory, head)});
    }
  };
  pool.parallel_for(heads, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t head = begin; head < end; ++head) walk(head);
  });
}

}  // namespace espalier::cpu
