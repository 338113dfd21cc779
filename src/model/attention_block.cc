#include "model/attention_block.h"

namespace espalier::model {

Result<AttentionBlock> AttentionBlock::bind(const DecoderConfig& decoder,
                                            const AttentionConfig& config, float norm_offset,
                                            const Modules& modules, std::size_t layer) {
  const std::size_t query_size = config.heads * config.head_dim;
  const std::size_t kv_size = config.kv_heads * config.head_dim;
  AttentionBlock block;
  block.config_ = config;
  block.norm_epsilon_ = decoder.norm_epsilon;
  const Modules::Part parts[] = {
      {Module::kQuery, query_size}, {Module::kKey, kv_size}, {Module::kValue, kv_size}};
  ESPALIER_TRY(block.query_key_value_,
               modules.linears(parts, Module::kQueryKeyValue, layer, decoder.hidden));
  if (config.head_norms == HeadNorms::kQueryAndKey) {
    ESPALIER_TRY(block.query_norm_,
                 modules.norm(Module::kQueryNorm, layer, config.head_dim, norm_offset));
    ESPALIER_TRY(block.key_norm_,
                 modules.norm(Module::kKeyNorm, layer, config.head_dim, norm_offset));
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
  float* queries = ops.workspace().floats(n * c.heads * c.head_dim);
  float* keys = ops.workspace().floats(n * c.kv_heads * c.head_dim);
  float* values = ops.workspace().floats(n * c.kv_heads * c.head_dim);
  float* attended = ops.workspace().floats(n * c.heads * c.head_dim);

  float* const projected[] = {queries, keys, values};
  project(ops, n, x, query_key_value_, projected);
  if (!query_norm_.empty()) {
    ops.rms_norm(n * c.heads, queries, query_norm_, norm_epsilon_, queries);
    ops.rms_norm(n * c.kv_heads, keys, key_norm_, norm_epsilon_, keys);
  }
  if (rope != nullptr) {
    ops.rope(rows, c.heads, c.head_dim, *rope, queries);
    ops.rope(rows, c.kv_heads, c.head_dim, *rope, keys);
  }
  ops.store_kv(rows, keys, values, cache);
  const compute::Attention attention = {.heads = c.heads,
                                        .kv_heads = c.kv_heads,
                                        .head_dim = c.head_dim,
                                        .scale = c.scale,
                                        .window = c.window,
                                        .softcap = c.softcap,
                                        .sinks = {}};
  ops.attention(rows, queries, cache, attention, attended);
  ops.project(n, attended, output_, y);
}

}  // namespace espalier::model
