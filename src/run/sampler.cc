#include "run/sampler.h"

#include <algorithm>
#include <cmath>

namespace espalier::run {

std::int32_t Sampler::sample(std::span<const float> logits, std::span<const std::int32_t> past) {
  candidates_.resize(logits.size());
  for (std::size_t id = 0; id < logits.size(); ++id) {
    candidates_[id] = {logits[id], static_cast<std::int32_t>(id)};
  }
  if (options_.repeat_penalty != 1) penalize_repeats(past);
  if (options_.temperature <= 0) {
    return std::max_element(
               candidates_.begin(), candidates_.end(),
               [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; })
        ->id;
  }
  keep_most_likely();

  // Candidates are sorted now; weights are relative to the first one's.
  const auto weight = [this](const Candidate& candidate, double temperature) {
    return std::exp((static_cast<double>(candidate.logit) - candidates_[0].logit) / temperature);
  };
  std::size_t kept = candidates_.size();
  if (options_.top_p < 1) {
    double total = 0;
    for (const Candidate& candidate : candidates_) total += weight(candidate, 1);
    double sum = 0;
    for (kept = 0; kept < candidates_.size() && (kept == 0 || sum < options_.top_p * total);
         ++kept) {
      sum += weight(candidates_[kept], 1);
    }
  }
  while (kept > 1 && weight(candidates_[kept - 1], 1) < options_.min_p) --kept;

  weights_.reserve(candidates_.size());  // so that later tokens need no more
  weights_.resize(kept);
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    total += weights_[i] = weight(candidates_[i], options_.temperature);
  }
  // 53 random bits make a double in [0, 1); the standard's distributions differ between libraries.
  double remaining = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    if (remaining < weights_[i]) return candidates_[i].id;
    remaining -= weights_[i];
  }
  return candidates_[kept - 1].id;
}

// Keskar et al., CTRL (2019), section 4.1: positive logits are divided by the penalty, negative
// ones multiplied.
void Sampler::penalize_repeats(std::span<const std::int32_t> past) {
  const auto recent = past.last(std::min(past.size(), options_.repeat_window));
  std::vector<std::int32_t> seen(recent.begin(), recent.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const std::int32_t id : seen) {
    float& logit = candidates_[static_cast<std::size_t>(id)].logit;
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
  }
}

// Sorts the candidates, most likely first, and cuts to top_k.
void Sampler::keep_most_likely() {
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto top_k = static_cast<std::size_t>(std::max(options_.top_k, 0));
  if (top_k == 0 || top_k >= candidates_.size()) {
    std::sort(candidates_.begin(), candidates_.end(), likelier);
    return;
  }
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(top_k),
                    candidates_.end(), likelier);
  candidates_.resize(top_k);
}

}  // namespace espalier::run
