// Gemma 3, its text part: of six layers five slide, with a RoPE of their own; norms of every query
// and key instead of soft caps. Gemma Team (2025).
#include "model/gemma.h"

namespace espalier::model {
namespace {

constexpr Key kLogitSoftcap = {"final_logit_softcapping", "final_logit_softcapping"};
constexpr std::size_t kFullRope = 0;  // indices into DecoderConfig::ropes
constexpr std::size_t kSlidingRope = 1;

// The windows of the published sizes, known by their layers: files do not always say them.
std::size_t usual_window(std::size_t layers) {
  struct Size {
    std::size_t layers, window;
  };
  static constexpr Size kSizes[] = {{18, 512}, {26, 512}, {34, 1024}, {48, 1024}, {62, 1024}};
  for (const Size& size : kSizes) {
    if (size.layers == layers) return size.window;
  }
  return 0;
}

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config, read_gemma(settings, weights,
                                                {.heads = 8,
                                                 .kv_heads = 4,
                                                 .head_dim = 256,
                                                 .context_length = 131072,
                                                 .rope_base = 1e6,
                                                 .activation = compute::Activation::kGeluTanh},
                                                62));
  ESPALIER_TRY(config.logit_softcap, read_softcap(settings, kLogitSoftcap, 0));
  ESPALIER_TRY(const std::size_t window, read_window(settings, usual_window(config.layers.size())));
  ESPALIER_TRY(const auto kinds, read_layer_kinds(settings, config.layers.size(), 6));
  const auto& first = std::get<AttentionConfig>(config.layers[0].mixer);
  ESPALIER_TRY(LayerRope sliding,
               read_sliding_rope(settings, {.head_dim = first.head_dim, .base = 10000}));
  config.ropes.push_back(std::move(sliding));
  config.for_each_attention([&](AttentionConfig& attention, std::size_t l) {
    const bool slides = kinds[l] == LayerKind::kSliding && window != 0;
    attention.head_norms = HeadNorms::kQueryAndKey;
    attention.window = slides ? window : 0;
    attention.rope = slides ? kSlidingRope : kFullRope;
  });
  return config;
}

}  // namespace

const Architecture kGemma3 = {.name = "gemma3",
                              .model_types = {"gemma3_text", "gemma3"},
                              .configure = configure,
                              .names = kGemmaNames,
                              .hugging_face_norm_offset = 1};

}  // namespace espalier::model
