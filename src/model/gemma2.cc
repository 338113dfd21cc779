// Gemma 2: every other layer slides, and scores and logits are bounded by soft caps.
// Gemma Team (2024).
#include "model/gemma.h"

namespace espalier::model {
namespace {

constexpr Key kScoreSoftcap = {"attn_logit_softcapping", "attn_logit_softcapping"};
constexpr Key kLogitSoftcap = {"final_logit_softcapping", "final_logit_softcapping"};

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config,
               read_gemma(settings, weights,
                          {.head_dim = 256, .activation = compute::Activation::kGeluTanh}, 46));
  ESPALIER_TRY(const float score_softcap, read_softcap(settings, kScoreSoftcap, 50));
  ESPALIER_TRY(config.logit_softcap, read_softcap(settings, kLogitSoftcap, 30));
  ESPALIER_TRY(const std::size_t window, read_window(settings, 4096));
  ESPALIER_TRY(const auto kinds, read_layer_kinds(settings, config.layers.size(), 2));
  config.for_each_attention([&](AttentionConfig& attention, std::size_t l) {
    attention.softcap = score_softcap;
    attention.window = kinds[l] == LayerKind::kSliding ? window : 0;
  });
  return config;
}

}  // namespace

const Architecture kGemma2 = {.name = "gemma2",
                              .model_types = {"gemma2"},
                              .configure = configure,
                              .names = kGemmaNames,
                              .hugging_face_norm_offset = 1};

}  // namespace espalier::model
