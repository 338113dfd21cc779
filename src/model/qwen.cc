#include "model/qwen.h"

#include <algorithm>

namespace espalier::model {
namespace {

constexpr Key kSlides = {"", "use_sliding_window"};
constexpr Key kFirstSliding = {"", "max_window_layers"};
constexpr Key kLayerKinds = {"attention.sliding_window_pattern", "layer_types"};

}  // namespace

Result<DecoderConfig> read_qwen(const Settings& settings, const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config, read_decoder(settings, weights));
  const bool lists_kinds = settings.is_array(kLayerKinds);
  ESPALIER_TRY(const auto slides, settings.boolean(kSlides));
  const bool gguf = settings.convention() == Convention::kGguf;
  if (!slides.value_or(gguf && lists_kinds)) return config;

  const std::size_t layers = config.layers.size();
  ESPALIER_TRY(const std::size_t window, read_window(settings));
  ESPALIER_TRY(const auto first_sliding, settings.unsigned_integer(kFirstSliding));
  ESPALIER_TRY(std::vector<LayerKind> kinds, read_layer_kinds(settings, layers, 0));
  if (!lists_kinds) {
    for (std::size_t l = 0; l < std::min<std::size_t>(first_sliding.value_or(28), layers); ++l) {
      kinds[l] = LayerKind::kFull;
    }
  }
  config.for_each_attention([&](AttentionConfig& attention, std::size_t l) {
    attention.window = kinds[l] == LayerKind::kSliding ? window : 0;
  });
  return config;
}

}  // namespace espalier::model
