#include "model/attention_block.h"

#include <array>

namespace espalier::model {

Result<AttentionBlock> AttentionBlock::bind(const DecoderConfig& decoder,
                                            const AttentionConfig& config, float norm_offset,
                                            const Modules& modules, std::size_t layer) {
  const std::size_t query_size = config.heads * config.head_dim;
  const std::size_t kv_size = config.kv_heads * config.head_dim;
  AttentionBlock block;
  block.config_ = config;
  block.norm_epsilon_ = decoder.norm_epsilon;
  const std::size_t query_outputs =
      config.output_gate == OutputGate::kSigmoid ? 2 * query_size : query_size;
  const Modules::Part parts[] = {
      {Module::kQuery, query_outputs}, {Module::kKey, kv_size}, {Module::kValue, kv_size}};
  ESPALIER_TRY(block.query_key_value_,
               modules.linears(parts, Module::kQueryKeyValue, layer, decoder.hidden));
  if (config.head_norms == HeadNorms::kQueryAndKey) {
    ESPALIER_TRY(block.query_norm_,
                 modules.norm(Module::kQueryNorm, layer, config.head_dim, norm_offset));
    ESPALIER_TRY(block.key_norm_,
                 modules.norm(Module::kKeyNorm, layer, config.head_dim, norm_offset));
  }
  if (config.sinks == Sinks::kOnePerHead) {
    ESPALIER_TRY(block.sinks_,
                 modules.weights().vector(modules.name(Module::kSinks, layer), config.heads));
  }
  ESPALIER_TRY(block.output_,
               modules.linear(Module::kAttentionOutput, layer, decoder.hidden, query_size));
  return block;
}

void AttentionBlock::forward(compute::Ops& ops, std::span<const compute::Row> rows,
                             const compute::Rope* rope, const compute::KvView& cache,
                             const float* x, float* y) const {
  const AttentionConfig& c = config_;
  const std::size_t n = rows.size();
  const compute::Workspace::Frame frame(ops.workspace());
  const std::size_t query_size = c.heads * c.head_dim;
  const compute::Heads heads = {.queries = ops.workspace().floats(n * query_size),
                                .keys = ops.workspace().floats(n * c.kv_heads * c.head_dim),
                                .values = ops.workspace().floats(n * c.kv_heads * c.head_dim),
                                .query_heads = c.heads};
  float* attended = ops.workspace().floats(n * query_size);

  if (c.output_gate == OutputGate::kSigmoid) {
    float* gates = ops.workspace().floats(n * query_size);
    float* gated_queries = ops.workspace().floats(2 * n * query_size);
    project(ops, n, x, query_key_value_, std::array{gated_queries, heads.keys, heads.values});
    const compute::SplitPart parts[] = {{c.head_dim, heads.queries, query_size},
                                        {c.head_dim, gates, query_size}};
    ops.split(n, c.heads, parts, gated_queries);
    attend(ops, rows, rope, cache, heads, attended);
    ops.gate_project(n, gates, attended, compute::Activation::kSigmoid, output_, y);
  } else {
    project(ops, n, x, query_key_value_, std::array{heads.queries, heads.keys, heads.values});
    attend(ops, rows, rope, cache, heads, attended);
    ops.project(n, attended, output_, y);
  }
}

void AttentionBlock::attend(compute::Ops& ops, std::span<const compute::Row> rows,
                            const compute::Rope* rope, const compute::KvView& cache,
                            const compute::Heads& heads, float* attended) const {
  const AttentionConfig& c = config_;
  const compute::HeadNorms norms = {query_norm_, key_norm_, norm_epsilon_};
  ops.norm_rope_store(rows, heads, norms, rope, cache);
  const compute::Attention attention = {.heads = c.heads,
                                        .kv_heads = c.kv_heads,
                                        .head_dim = c.head_dim,
                                        .scale = c.scale,
                                        .window = c.window,
                                        .softcap = c.softcap,
                                        .sinks = sinks_};
  ops.attention(rows, heads.queries, cache, attention, attended);
}

}  // namespace espalier::model
