// Qwen3-MoE: Qwen3 with a mixture of experts for an MLP, in all layers or in some. Yang et al.
// (2025).
#include <algorithm>

#include "model/mixture_config.h"
#include "model/qwen.h"

namespace espalier::model {
namespace {

constexpr Key kDenseLayers = {"", "mlp_only_layers"};
constexpr Key kSparseStep = {"", "decoder_sparse_step"};

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config, read_qwen(settings, weights));
  config.for_each_attention([](AttentionConfig& attention, std::size_t) {
    attention.head_norms = HeadNorms::kQueryAndKey;
  });
  // Where config.json does not say whether weights are renormalized, they are not; GGUF never says,
  // and means that they are.
  const bool gguf = settings.convention() == Convention::kGguf;
  ESPALIER_TRY(const MixtureConfig mixture, read_mixture(settings, {.renormalize = gguf}));
  ESPALIER_TRY(const std::size_t step, settings.count(kSparseStep, kMaxLayers, 1));
  ESPALIER_TRY(const auto dense, settings.numbers(kDenseLayers));
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    const bool listed =
        dense && std::find(dense->begin(), dense->end(), static_cast<double>(l)) != dense->end();
    if (!listed && (l + 1) % step == 0) config.layers[l].mlp = mixture;
  }
  return config;
}

}  // namespace

const Architecture kQwen3Moe = {
    .name = "qwen3moe", .model_types = {"qwen3_moe"}, .configure = configure};

}  // namespace espalier::model
