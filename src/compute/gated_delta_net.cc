// The definition of a gated delta net layer in terms of small operators.
#include <algorithm>
#include <cmath>

#include "compute/ops.h"

namespace espalier::compute {
namespace {

// Under the root of a query's or key's length, in all models of this kind.
constexpr float kLengthEpsilon = 1e-6f;

// What the convolution and the rule work on, all [rows, …].
struct Inputs {
  float* qkv;  // queries, keys, values of all heads
  float* z;
  float* b;
  float* a;
};

Inputs project_inputs(Ops& ops, std::size_t rows, const float* x, const GatedDeltaNet& net) {
  const DeltaRule& rule = net.rule;
  const std::size_t queries = rule.key_heads * rule.key_dim;
  const std::size_t values = rule.value_heads * rule.value_dim;
  const std::size_t channels = 2 * queries + values;
  Workspace& workspace = ops.workspace();
  const Inputs in = {.qkv = workspace.floats(rows * channels),
                     .z = workspace.floats(rows * values),
                     .b = workspace.floats(rows * rule.value_heads),
                     .a = workspace.floats(rows * rule.value_heads)};
  const Workspace::Frame frame(workspace);
  if (net.qkvz.weight.format == nullptr) {
    const Projection both[] = {{&net.qkv, in.qkv}, {&net.z, in.z}};
    ops.project_all(rows, x, both);
  } else {
    float* fused = workspace.floats(rows * (channels + values));
    ops.project(rows, x, net.qkvz, fused);
    const std::size_t head_values = values / rule.key_heads;
    const SplitPart parts[] = {{rule.key_dim, in.qkv, channels},
                               {rule.key_dim, in.qkv + queries, channels},
                               {head_values, in.qkv + 2 * queries, channels},
                               {head_values, in.z, values}};
    ops.split(rows, rule.key_heads, parts, fused);
  }
  if (net.ba.weight.format == nullptr) {
    const Projection both[] = {{&net.b, in.b}, {&net.a, in.a}};
    ops.project_all(rows, x, both);
  } else {
    float* fused = workspace.floats(rows * 2 * rule.value_heads);
    ops.project(rows, x, net.ba, fused);
    const std::size_t width = rule.value_heads / rule.key_heads;
    const SplitPart parts[] = {{width, in.b, rule.value_heads}, {width, in.a, rule.value_heads}};
    ops.split(rows, rule.key_heads, parts, fused);
  }
  return in;
}

}  // namespace

void Ops::l2_norm(std::size_t rows, std::size_t width, const float* x, float epsilon, float* y) {
  // Σ x² is the mean of squares times the width, and so are both under the root.
  const Workspace::Frame frame(workspace_);
  const auto size = static_cast<float>(width);
  float* weight = workspace_.floats(width);
  std::fill_n(weight, width, 1 / std::sqrt(size));
  rms_norm(rows, x, {weight, width}, epsilon / size, y);
}

void Ops::gated_delta_net(std::span<const Row> rows, const float* x, const GatedDeltaNet& net,
                          const RecurrentView& state, float* y) {
  const DeltaRule& rule = net.rule;
  const std::size_t n = rows.size();
  const std::size_t queries_keys = 2 * rule.key_heads * rule.key_dim;
  const std::size_t values = rule.value_heads * rule.value_dim;
  const Workspace::Frame frame(workspace_);

  const Inputs in = project_inputs(*this, n, x, net);
  causal_convolution(rows, in.qkv, net.convolution, state, in.qkv);
  float* qk = workspace_.floats(n * queries_keys);
  float* v = workspace_.floats(n * values);
  const SplitPart parts[] = {{queries_keys, qk, queries_keys}, {values, v, values}};
  split(n, 1, parts, in.qkv);
  l2_norm(n * 2 * rule.key_heads, rule.key_dim, qk, kLengthEpsilon, qk);

  float* read = workspace_.floats(n * values);
  delta_rule(rows, qk, v, in.b, in.a, rule, state, read);
  rms_norm(n * rule.value_heads, read, net.norm, net.norm_epsilon, read);
  gate_project(n, in.z, read, Activation::kSilu, net.output, y);
}

}  // namespace espalier::compute
