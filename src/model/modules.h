// What the parts of a decoder are called in each container, and how a model finds their tensors.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "compute/ops.h"
#include "model/weights.h"

namespace espalier::model {

// Whose habits a checkpoint follows: names of tensors, order of rotated elements, form of norms.
enum class Convention { kGguf, kHuggingFace };

// The modules of a decoder. Those from kAttentionNorm on belong to a layer.
enum class Module {
  kEmbedding,
  kFinalNorm,
  kHead,
  kAttentionNorm,
  kQuery,
  kKey,
  kValue,
  kQueryKeyValue,  // the three above in one matrix, in this order
  kQueryNorm,
  kKeyNorm,
  kAttentionOutput,
  kAttentionPostNorm,
  kMlpNorm,
  kGate,
  kUp,
  kGateUp,  // the two above in one matrix, in this order
  kDown,
  kMlpPostNorm,
  kSinks,  // a tensor by itself
  kRouter,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kSharedExpertGate,
  kDeltaQueryKeyValue,
  kDeltaGate,
  kDeltaFused,  // the two above in one matrix, key head by key head
  kDeltaWrite,
  kDeltaDecay,
  kDeltaFusedWriteDecay,  // the same of these two
  kDeltaConvolution,
  kDeltaRate,      // a tensor by itself
  kDeltaStepBias,  // a tensor by itself
  kDeltaNorm,
  kDeltaOutput,
};

// A module's name in each container; {} stands for the layer. Its tensors are NAME.weight and
// NAME.bias.
struct ModuleName {
  Module module;
  std::string_view gguf;
  std::string_view hugging_face;
};

// The usual names. An architecture lists its exceptions.
inline constexpr ModuleName kModuleNames[] = {
    {Module::kEmbedding, "token_embd", "model.embed_tokens"},
    {Module::kFinalNorm, "output_norm", "model.norm"},
    {Module::kHead, "output", "lm_head"},
    {Module::kAttentionNorm, "blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
    {Module::kQuery, "blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"},
    {Module::kKey, "blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"},
    {Module::kValue, "blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
    {Module::kQueryKeyValue, "blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj"},
    {Module::kQueryNorm, "blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"},
    {Module::kKeyNorm, "blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"},
    {Module::kAttentionOutput, "blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
    {Module::kMlpNorm, "blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"},
    {Module::kGate, "blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
    {Module::kUp, "blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
    {Module::kGateUp, "blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj"},
    {Module::kDown, "blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
    {Module::kRouter, "blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate"},
    {Module::kSharedGate, "blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_expert.gate_proj"},
    {Module::kSharedUp, "blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_expert.up_proj"},
    {Module::kSharedDown, "blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_expert.down_proj"},
    {Module::kSharedExpertGate, "blk.{}.ffn_gate_inp_shexp",
     "model.layers.{}.mlp.shared_expert_gate"},
    {Module::kSinks, "blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.sinks"},
    {Module::kDeltaQueryKeyValue, "blk.{}.attn_qkv", "model.layers.{}.linear_attn.in_proj_qkv"},
    {Module::kDeltaGate, "blk.{}.attn_gate", "model.layers.{}.linear_attn.in_proj_z"},
    {Module::kDeltaFused, "blk.{}.ssm_in", "model.layers.{}.linear_attn.in_proj_qkvz"},
    {Module::kDeltaWrite, "blk.{}.ssm_beta", "model.layers.{}.linear_attn.in_proj_b"},
    {Module::kDeltaDecay, "blk.{}.ssm_alpha", "model.layers.{}.linear_attn.in_proj_a"},
    {Module::kDeltaFusedWriteDecay, "blk.{}.ssm_ba", "model.layers.{}.linear_attn.in_proj_ba"},
    {Module::kDeltaConvolution, "blk.{}.ssm_conv1d", "model.layers.{}.linear_attn.conv1d"},
    {Module::kDeltaRate, "blk.{}.ssm_a", "model.layers.{}.linear_attn.A_log"},
    {Module::kDeltaStepBias, "blk.{}.ssm_dt.bias", "model.layers.{}.linear_attn.dt_bias"},
    {Module::kDeltaNorm, "blk.{}.ssm_norm", "model.layers.{}.linear_attn.norm"},
    {Module::kDeltaOutput, "blk.{}.ssm_out", "model.layers.{}.linear_attn.out_proj"},
};

// The name of `module` by `exceptions` or else kModuleNames.
[[nodiscard]] std::string module_name(std::span<const ModuleName> exceptions, Convention convention,
                                      Module module, std::size_t layer);

// Projections of the same input, which checkpoints may store as one matrix.
struct JointLinear {
  std::vector<compute::Linear> parts;  // one per projection, or a single one with all their rows
  std::vector<std::size_t> sizes;      // outputs of each projection
};

inline void prepare(compute::Ops& ops, JointLinear& joint) {
  for (compute::Linear& part : joint.parts) ops.prepare(part);
}

// Projects x [rows, inputs] to outputs[i] [rows, sizes[i]].
void project(compute::Ops& ops, std::size_t rows, const float* x, const JointLinear& joint,
             std::span<float* const> outputs);

// The tensors of a model by what they are. Errors name the tensor as the container does.
class Modules {
 public:
  Modules(const Weights& weights, Convention convention, std::span<const ModuleName> exceptions)
      : weights_(weights), convention_(convention), exceptions_(exceptions) {}

  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] Convention convention() const { return convention_; }
  [[nodiscard]] std::string name(Module module, std::size_t layer = 0) const {
    return module_name(exceptions_, convention_, module, layer);
  }

  // Weight and, if there is one, bias.
  [[nodiscard]] Result<compute::Linear> linear(Module module, std::size_t layer,
                                               std::size_t outputs, std::size_t inputs) const;

  // `parts` with their numbers of outputs: each by itself or, where the first is not there, all in
  // the matrix of `fused`, of which they become views where its format allows.
  struct Part {
    Module module;
    std::size_t outputs;
  };
  [[nodiscard]] Result<JointLinear> linears(std::span<const Part> parts, Module fused,
                                            std::size_t layer, std::size_t inputs) const;

  // The weights of a norm, with `offset` added to each.
  [[nodiscard]] Result<std::vector<float>> norm(Module module, std::size_t layer, std::size_t size,
                                                float offset) const;

 private:
  const Weights& weights_;
  Convention convention_;
  std::span<const ModuleName> exceptions_;
};

}  // namespace espalier::model
