// The definition of a mixture of experts in terms of small operators.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "compute/ops.h"
#include "compute/routing.h"

namespace espalier::compute {
namespace {

// y += sigmoid(gate(x)) · shared(x)
void add_shared_expert(Ops& ops, std::size_t rows, const float* x, const MixtureOfExperts& mixture,
                       float* y) {
  const std::size_t hidden = mixture.shared->down.weight.rows;
  Workspace& workspace = ops.workspace();
  const Workspace::Frame frame(workspace);
  float* shared = workspace.floats(rows * hidden);
  ops.gated_mlp(rows, x, *mixture.shared, shared);
  if (!mixture.shared_gate) return ops.add(rows * hidden, shared, y);

  float* factors = workspace.floats(rows);
  ops.project(rows, x, *mixture.shared_gate, factors);
  for (std::size_t r = 0; r < rows; ++r) {
    factors[r] = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(factors[r]))));
  }
  const std::span<std::uint32_t> all(workspace.take<std::uint32_t>(rows), rows);
  std::iota(all.begin(), all.end(), 0);
  ops.scatter_add_rows(all, factors, hidden, shared, y);
}

}  // namespace

// An expert computes all rows that chose it at once. A row's sum goes through its experts in the
// order of their numbers, the shared one last, whichever other rows there are.
void Ops::mixture_of_experts(std::size_t rows, const float* x, const MixtureOfExperts& mixture,
                             float* y) {
  const Workspace::Frame frame(workspace_);
  const Router& router = mixture.router;
  const std::size_t experts = router.linear.weight.rows;
  const std::size_t hidden = router.linear.weight.cols;
  float* outputs = workspace_.floats(rows * experts);
  project(rows, x, router.linear, outputs);
  const std::span<ExpertChoice> choices(workspace_.take<ExpertChoice>(rows * router.top_k),
                                        rows * router.top_k);
  for (std::size_t r = 0; r < rows; ++r) {
    route(router, {outputs + r * experts, experts},
          choices.subspan(r * router.top_k, router.top_k));
  }
  const ExpertGroups groups = group_by_expert(choices, router.top_k, experts, workspace_);

  std::fill_n(y, rows * hidden, 0.0F);
  float* gathered = workspace_.floats(rows * hidden);
  for (std::size_t e = 0; e < experts; ++e) {
    const std::size_t count = groups.begin[e + 1] - groups.begin[e];
    if (count == 0) continue;
    const auto served = groups.rows.subspan(groups.begin[e], count);
    gather_rows(served, hidden, x, gathered);
    gated_mlp(count, gathered, mixture.experts[e], gathered);
    scatter_add_rows(served, groups.weights.data() + groups.begin[e], hidden, gathered, y);
  }
  if (mixture.shared) add_shared_expert(*this, rows, x, mixture, y);
}

}  // namespace espalier::compute
