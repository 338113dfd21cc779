#include "model/mixture_config.h"

namespace espalier::model {
namespace {

constexpr std::uint64_t kMaxExperts = 1u << 16;

constexpr Key kExperts = {"expert_count", "num_experts"};
constexpr Key kLocalExperts = {"", "num_local_experts"};
constexpr Key kTopK = {"expert_used_count", "num_experts_per_tok"};
constexpr Key kExpertHidden = {"expert_feed_forward_length", "moe_intermediate_size"};
constexpr Key kRenormalize = {"expert_weights_norm", "norm_topk_prob"};
constexpr Key kScale = {"expert_weights_scale", ""};
constexpr Key kGating = {"expert_gating_func", ""};

// GGUF has keys for what none of the architectures here does; 0 is what it writes for "none".
Status check_weights(const Settings& settings) {
  if (settings.convention() != Convention::kGguf) return {};
  ESPALIER_TRY(const auto scale, settings.number(kScale));
  if (scale.value_or(0) != 0 && *scale != 1) {
    return input_error("{}: found {}, expected 1", settings.place(kScale), *scale);
  }
  constexpr std::uint64_t kSigmoid = 2, kSqrtSoftplus = 4;
  ESPALIER_TRY(const auto gating, settings.unsigned_integer(kGating));
  if (gating == kSigmoid || gating.value_or(0) >= kSqrtSoftplus) {
    return input_error("{}: found {}, expected 1 (softmax)", settings.place(kGating), *gating);
  }
  return {};
}

}  // namespace

Result<MixtureConfig> read_mixture(const Settings& settings, const MixtureDefaults& defaults) {
  MixtureConfig mixture;
  ESPALIER_TRY(const auto experts, settings.unsigned_integer(kExperts));
  const bool local = !experts && settings.convention() == Convention::kHuggingFace;
  ESPALIER_TRY(mixture.experts, settings.count(local ? kLocalExperts : kExperts, kMaxExperts));
  ESPALIER_TRY(mixture.top_k, settings.count(kTopK, mixture.experts));
  ESPALIER_TRY(mixture.hidden, settings.count(kExpertHidden, kMaxWidth, defaults.hidden));
  ESPALIER_TRY(const auto renormalize, settings.boolean(kRenormalize));
  mixture.renormalize = renormalize.value_or(defaults.renormalize);
  ESPALIER_CHECK(check_weights(settings));
  return mixture;
}

}  // namespace espalier::model
