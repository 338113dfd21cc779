// Qwen3-MoE: Qwen3 with a mixture of experts for an MLP, in all layers or in some. Yang et al.
// (2025).
#include <algorithm>

#include "model/mixture_config.h"
#include "model/qwen.h"

namespace espalier::model {
namespace {

constexpr Key kDenseLayers = {"", "mlp_only_layers"};
constexpr Key kSparseStep = {"", "decoder_sparse_step"};
constexpr Key kLeadingDense = {"leading_dense_block_count", ""};

// Which layers have a mixture. By config.json: every so many, but for those it lists.
Result<std::vector<bool>> read_sparse_layers(const Settings& settings, std::size_t layers) {
  ESPALIER_TRY(const std::size_t step, settings.count(kSparseStep, kMaxLayers, 1));
  ESPALIER_TRY(const auto dense, settings.numbers(kDenseLayers));
  std::vector<bool> sparse(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    const bool listed =
        dense && std::find(dense->begin(), dense->end(), static_cast<double>(l)) != dense->end();
    sparse[l] = !listed && (l + 1) % step == 0;
  }
  return sparse;
}

// GGUF can only say how many layers without a mixture come first. Of the others, those have none
// that hold an MLP of their own instead.
Result<std::vector<bool>> find_sparse_layers(const Settings& settings, const Weights& weights,
                                             std::size_t layers) {
  ESPALIER_TRY(const auto leading, settings.unsigned_integer(kLeadingDense));
  std::vector<bool> sparse(layers);
  for (std::size_t l = leading.value_or(0); l < layers; ++l) {
    ESPALIER_TRY(const auto mlp,
                 weights.find_matrix(module_name({}, Convention::kGguf, Module::kGate, l)));
    sparse[l] = !mlp;
  }
  return sparse;
}

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config, read_qwen(settings, weights));
  config.for_each_attention([](AttentionConfig& attention, std::size_t) {
    attention.head_norms = HeadNorms::kQueryAndKey;
  });
  // Where config.json does not say whether weights are renormalized, they are not; where GGUF does
  // not, they are.
  const bool gguf = settings.convention() == Convention::kGguf;
  ESPALIER_TRY(const MixtureConfig mixture, read_mixture(settings, {.renormalize = gguf}));
  const std::size_t layers = config.layers.size();
  ESPALIER_TRY(const std::vector<bool> sparse, gguf ? find_sparse_layers(settings, weights, layers)
                                                    : read_sparse_layers(settings, layers));
  for (std::size_t l = 0; l < layers; ++l) {
    if (sparse[l]) config.layers[l].mlp = mixture;
  }
  return config;
}

}  // namespace

const Architecture kQwen3Moe = {
    .name = "qwen3moe", .model_types = {"qwen3_moe"}, .configure = configure};

}  // namespace espalier::model
