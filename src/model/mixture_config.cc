#include "model/mixture_config.h"

namespace espalier::model {
namespace {

constexpr std::uint64_t kMaxExperts = 1u << 16;

constexpr Key kExperts = {"expert_count", "num_experts"};
constexpr Key kLocalExperts = {"", "num_local_experts"};
constexpr Key kTopK = {"expert_used_count", "num_experts_per_tok"};
constexpr Key kExpertHidden = {"expert_feed_forward_length", "moe_intermediate_size"};
constexpr Key kRenormalize = {"expert_weights_norm", "norm_topk_prob"};

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
  return mixture;
}

}  // namespace espalier::model
