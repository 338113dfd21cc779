// Attention as a layer of a decoder: projections, norms of heads, RoPE, cache, softmax, output.
// Vaswani et al. (2017); grouped queries: Ainslie et al. (2023).
#pragma once

#include "compute/ops.h"
#include "model/decoder_config.h"
#include "model/modules.h"

namespace espalier::model {

class AttentionBlock {
 public:
  // Errors: tensors that are missing or of the wrong shape.
  static Result<AttentionBlock> bind(const DecoderConfig& decoder, const AttentionConfig& config,
                                     float norm_offset, const Modules& modules, std::size_t layer);

  void prepare(compute::Ops& ops) {
    model::prepare(ops, query_key_value_);
    ops.prepare(output_);
  }

  [[nodiscard]] const AttentionConfig& config() const { return config_; }

  // y [rows, hidden] = attention of x [rows, hidden], which is normed. `rope` is null for layers
  // without.
  void forward(compute::Ops& ops, std::span<const compute::Row> rows, const compute::Rope* rope,
               const compute::KvView& cache, const float* x, float* y) const;

 private:
  // From the projected heads to attended [rows, heads, head_dim].
  void attend(compute::Ops& ops, std::span<const compute::Row> rows, const compute::Rope* rope,
              const compute::KvView& cache, const compute::Heads& heads, float* attended) const;

  AttentionConfig config_;
  float norm_epsilon_ = 0;
  JointLinear query_key_value_;                       // the query with its gate, where there is one
  std::vector<float> query_norm_, key_norm_, sinks_;  // empty without
  compute::Linear output_;
};

}  // namespace espalier::model
