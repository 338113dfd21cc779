#include "model/gemma.h"

#include <cmath>

namespace espalier::model {
namespace {

constexpr Key kQuerySize = {"", "query_pre_attn_scalar"};
constexpr Key kScale = {"attention.scale", ""};

}  // namespace

Result<DecoderConfig> read_gemma(const Settings& settings, const Weights& weights,
                                 const DecoderDefaults& defaults, std::size_t large_layers) {
  ESPALIER_TRY(DecoderConfig config, read_decoder(settings, weights, defaults));
  config.layer_norms = LayerNorms::kBeforeAndAfter;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));

  ESPALIER_TRY(const auto scale, settings.number(kScale));
  if (scale) return config;
  const auto& attention = std::get<AttentionConfig>(config.layers[0].mixer);
  auto usual = static_cast<double>(attention.head_dim);
  if (settings.convention() == Convention::kGguf && config.layers.size() == large_layers) {
    usual = static_cast<double>(config.hidden) / static_cast<double>(attention.heads);
  }
  ESPALIER_TRY(const double size, settings.positive(kQuerySize, usual));
  config.for_each_attention([&](AttentionConfig& each, std::size_t) {
    each.scale = static_cast<float>(1 / std::sqrt(size));
  });
  return config;
}

}  // namespace espalier::model
