// Llama 1 to 3.x and what else calls itself so (SmolLM2, …), and Mistral 7B, which is a Llama whose
// layers look back only a window. Touvron et al. (2023); Jiang et al. (2023). Mixtral is either
// with a mixture of experts: Jiang et al. (2024).
#include "model/mixture_config.h"

namespace espalier::model {
namespace {

constexpr Key kExperts = {"expert_count", "num_local_experts"};

constexpr ModuleName kNames[] = {
    {Module::kRouter, "blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.gate"},
};

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config, read_decoder(settings, weights));
  ESPALIER_TRY(const auto experts, settings.unsigned_integer(kExperts));
  if (experts.value_or(0) != 0) {
    const std::size_t mlp_hidden = std::get<MlpConfig>(config.layers[0].mlp).hidden;
    ESPALIER_TRY(const MixtureConfig mixture, read_mixture(settings, {.hidden = mlp_hidden}));
    for (LayerConfig& layer : config.layers) layer.mlp = mixture;
  }
  ESPALIER_TRY(const std::size_t window, read_window(settings));
  config.for_each_attention(
      [&](AttentionConfig& attention, std::size_t) { attention.window = window; });
  return config;
}

}  // namespace

const Architecture kLlama = {.name = "llama",
                             .model_types = {"llama", "mistral", "mixtral"},
                             .configure = configure,
                             .names = kNames,
                             .gguf_rope_pairs = compute::RopePairs::kInterleaved};

}  // namespace espalier::model
