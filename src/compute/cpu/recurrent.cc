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
  const RecurrentKernels& kernels = recurrent_kernels();
  const std::size_t heads = rule.value_heads;
  const std::size_t tile_size = rule.key_dim * DeltaRule::kTile;
  auto* gates = workspace.take<DeltaGates>(rows.size() * heads);
  pool.parallel_for(rows.size() * heads, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t i = begin; i < end; ++i) {
      gates[i] = compute::delta_gates(rule, i % heads, b[i], a[i]);
    }
  });

  const std::size_t tiles = rule.tiles();
  pool.parallel_for(heads * tiles, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t head = i / tiles;
      const std::size_t column = i % tiles * DeltaRule::kTile;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        float* tile = of_sequence(state.memory, state.memory_size, rows[r]) + i * tile_size;
        if (rows[r].position == 0) std::fill_n(tile, tile_size, 0.0f);
        const float* queries = queries_keys + r * 2 * rule.key_heads * rule.key_dim;
        const float* query = queries + rule.key_head(head) * rule.key_dim;
        const std::size_t at = (r * heads + head) * rule.value_dim + column;
        kernels.delta({.query = query,
                       .key = query + rule.key_heads * rule.key_dim,
                       .value = values + at,
                       .key_dim = rule.key_dim,
                       .columns = std::min(DeltaRule::kTile, rule.value_dim - column),
                       .keep = static_cast<float>(gates[r * heads + head].keep),
                       .write = static_cast<float>(gates[r * heads + head].write),
                       .scale = rule.scale},
                      tile, y + at);
      }
    }
  });
}

}  // namespace espalier::cpu
