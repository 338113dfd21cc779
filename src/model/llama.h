// The Llama family: Llama 1 to 3.x, Mistral, SmolLM2 and whatever else calls itself "llama".
// Touvron et al. (2023); grouped-query attention: Ainslie et al. (2023).
#pragma once

#include <memory>

#include "file/json.h"
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

inline constexpr LlamaNames kHfLlamaNames = {
    .embedding = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .attention_norm = "model.layers.{}.input_layernorm",
    .query = "model.layers.{}.self_attn.q_proj",
    .key = "model.layers.{}.self_attn.k_proj",
    .value = "model.layers.{}.self_attn.v_proj",
    .output = "model.layers.{}.self_attn.o_proj",
    .mlp_norm = "model.layers.{}.post_attention_layernorm",
    .gate = "model.layers.{}.mlp.gate_proj",
    .up = "model.layers.{}.mlp.up_proj",
    .down = "model.layers.{}.mlp.down_proj",
};

// The configuration in GGUF metadata, or in a config.json. Errors: keys that are missing, of
// another type, out of range or contradict each other.
[[nodiscard]] Result<LlamaConfig> llama_config(const file::Gguf& gguf, const Weights& weights);
[[nodiscard]] Result<LlamaConfig> llama_config(const file::JsonObject& config);

// Errors: a configuration that contradicts itself, missing tensors, tensors of the wrong shape.
[[nodiscard]] Result<std::unique_ptr<Model>> load_llama(const LlamaConfig& config,
                                                        const Weights& weights,
                                                        const LlamaNames& names);

}  // namespace espalier::model
