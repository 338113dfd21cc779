// The Llama family: Llama 1 to 3.x, Mistral, SmolLM2 and whatever else calls itself "llama".
// Touvron et al. (2023); grouped-query attention: Ainslie et al. (2023).
#pragma once

#include <memory>

#include "model/model.h"
#include "model/weights.h"

namespace espalier::model {

struct LlamaConfig {
  std::size_t layers = 0;
  std::size_t hidden = 0;
  std::size_t mlp_hidden = 0;
  std::size_t heads = 0;
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t vocab_size = 0;
  std::size_t context_length = 0;
  float norm_epsilon = 1e-5f;
  compute::Rope rope;
};

// What the container calls the modules of a Llama; {} stands for the layer.
struct LlamaNames {
  std::string_view embedding, final_norm, head;
  std::string_view attention_norm, query, key, value, output;
  std::string_view mlp_norm, gate, up, down;
};

inline constexpr LlamaNames kGgufLlamaNames = {
    .embedding = "token_embd",
    .final_norm = "output_norm",
    .head = "output",
    .attention_norm = "blk.{}.attn_norm",
    .query = "blk.{}.attn_q",
    .key = "blk.{}.attn_k",
    .value = "blk.{}.attn_v",
    .output = "blk.{}.attn_output",
    .mlp_norm = "blk.{}.ffn_norm",
    .gate = "blk.{}.ffn_gate",
    .up = "blk.{}.ffn_up",
    .down = "blk.{}.ffn_down",
};

[[nodiscard]] Result<LlamaConfig> llama_config(const file::Gguf& gguf, const Weights& weights);

// Errors: a configuration that contradicts itself, missing tensors, tensors of the wrong shape.
[[nodiscard]] Result<std::unique_ptr<Model>> load_llama(const LlamaConfig& config,
                                                        const Weights& weights,
                                                        const LlamaNames& names);

}  // namespace espalier::model
