#include "compute/routing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace espalier::compute {
namespace {

bool is_chosen(std::span<const ExpertChoice> choices, std::size_t expert) {
  return std::any_of(choices.begin(), choices.end(),
                     [expert](const ExpertChoice& choice) { return choice.expert == expert; });
}

// The first of the experts with the highest score that are not among `choices`.
template <typename Score>
std::size_t best_expert(std::size_t experts, std::span<const ExpertChoice> choices,
                        const Score& score) {
  std::size_t best = experts;
  for (std::size_t e = 0; e < experts; ++e) {
    if ((best == experts || score(e) > score(best)) && !is_chosen(choices, e)) best = e;
  }
  return best;
}

}  // namespace

void route(const Router& router, std::span<const float> outputs, std::span<ExpertChoice> choices) {
  const std::size_t experts = outputs.size();
  const double highest = *std::max_element(outputs.begin(), outputs.end());
  double total = 1;
  // Renormalized weights are the same whatever the total is.
  if (router.scores == ExpertScores::kSoftmax &&
      !(router.renormalize && router.selection_bias.empty())) {
    total = 0;
    for (const float output : outputs) total += std::exp(output - highest);
  }
  const auto score = [&](std::size_t e) {
    return router.scores == ExpertScores::kSoftmax
               ? std::exp(outputs[e] - highest) / total
               : 1 / (1 + std::exp(-static_cast<double>(outputs[e])));
  };
  // Both kinds of score rise with the output, so that without a bias the outputs decide.
  const auto biased = [&](std::size_t e) { return score(e) + router.selection_bias[e]; };
  const auto plain = [&](std::size_t e) { return outputs[e]; };

  double sum = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const auto before = choices.first(i);
    const std::size_t expert = router.selection_bias.empty() ? best_expert(experts, before, plain)
                                                             : best_expert(experts, before, biased);
    choices[i] = {.expert = static_cast<std::uint32_t>(expert), .weight = 0};
    sum += score(expert);
  }
  const double factor = router.scale / (router.renormalize ? sum : 1.0);
  for (ExpertChoice& choice : choices) {
    choice.weight = static_cast<float>(score(choice.expert) * factor);
  }
}

ExpertGroups group_by_expert(std::span<const ExpertChoice> choices, std::size_t top_k,
                             std::size_t experts, Workspace& workspace) {
  ExpertGroups groups = {.begin = {workspace.take<std::uint32_t>(experts + 1), experts + 1},
                         .rows = {workspace.take<std::uint32_t>(choices.size()), choices.size()},
                         .weights = {workspace.take<float>(choices.size()), choices.size()}};
  std::fill(groups.begin.begin(), groups.begin.end(), 0);
  for (const ExpertChoice& choice : choices) ++groups.begin[choice.expert + 1];
  std::partial_sum(groups.begin.begin(), groups.begin.end(), groups.begin.begin());
  // While the groups fill, begin[e] is the next free place; afterwards all are one group too far.
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const std::size_t place = groups.begin[choices[i].expert]++;
    groups.rows[place] = static_cast<std::uint32_t>(i / top_k);
    groups.weights[place] = choices[i].weight;
  }
  std::copy_backward(groups.begin.begin(), groups.begin.end() - 1, groups.begin.end());
  groups.begin[0] = 0;
  return groups;
}

}  // namespace espalier::compute
