// SmolLM3: a Llama of which every fourth layer has no position embedding (Yang et al., NoPE, 2025).
#include "model/decoder_config.h"

namespace espalier::model {
namespace {

constexpr Key kUsesRope = {"", "no_rope_layers"};  // 1 for layers with RoPE, whatever the name says
constexpr Key kInterval = {"", "no_rope_layer_interval"};

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config, read_decoder(settings, weights));
  ESPALIER_TRY(const std::size_t interval, settings.count(kInterval, kMaxLayers, 4));
  ESPALIER_TRY(const auto uses_rope, settings.numbers(kUsesRope));
  if (uses_rope && uses_rope->size() != config.layers.size()) {
    return input_error("{} lists {} layers, expected {}", settings.place(kUsesRope),
                       uses_rope->size(), config.layers.size());
  }
  config.for_each_attention([&](AttentionConfig& attention, std::size_t l) {
    const bool has_rope = uses_rope ? (*uses_rope)[l] != 0 : (l + 1) % interval != 0;
    if (!has_rope) attention.rope = kNoRope;
  });
  return config;
}

}  // namespace

const Architecture kSmolLm3 = {.name = "smollm3",
                               .model_types = {"smollm3"},
                               .configure = configure,
                               .gguf_rope_pairs = compute::RopePairs::kInterleaved};

}  // namespace espalier::model
