#include "measure/profiled_ops.h"

#include "base/timer.h"

namespace espalier::measure {

std::string_view operator_name(Operator op) {
  static constexpr std::string_view kNames[kOperators] = {"embed",
                                                          "project",
                                                          "rms_norm",
                                                          "rope",
                                                          "store_kv",
                                                          "attention",
                                                          "gate",
                                                          "add",
                                                          "scale",
                                                          "softcap",
                                                          "split",
                                                          "gather_rows",
                                                          "scatter_add_rows",
                                                          "causal_convolution",
                                                          "delta_rule",
                                                          "add_rms_norm",
                                                          "norm_rope_store"};
  return kNames[static_cast<std::size_t>(op)];
}

template <typename Work>
void ProfiledOps::timed(Operator op, const Work& work) {
  OperatorAccount& account = accounts_[static_cast<std::size_t>(op)];
  const Timer timer;
  work();
  account.seconds += timer.seconds();
  ++account.calls;
}

void ProfiledOps::embed(std::span<const compute::Row> rows, const pack::Matrix& table, float* y) {
  timed(Operator::kEmbed, [&] { inner_.embed(rows, table, y); });
}

void ProfiledOps::count_weight(const compute::Linear& linear) {
  const pack::Matrix& w = linear.weight;
  accounts_[static_cast<std::size_t>(Operator::kProject)].weight_bytes +=
      w.data.size() + w.scales.size() + w.zeros.size();
}

void ProfiledOps::project(std::size_t rows, const float* x, const compute::Linear& linear,
                          float* y) {
  const compute::Projection projection[] = {{&linear, y}};
  project_all(rows, x, projection);
}

void ProfiledOps::project_all(std::size_t rows, const float* x,
                              std::span<const compute::Projection> projections) {
  for (const compute::Projection& projection : projections) count_weight(*projection.linear);
  timed(Operator::kProject, [&] { inner_.project_all(rows, x, projections); });
}

void ProfiledOps::rms_norm(std::size_t rows, const float* x, std::span<const float> weight,
                           float epsilon, float* y) {
  timed(Operator::kRmsNorm, [&] { inner_.rms_norm(rows, x, weight, epsilon, y); });
}

void ProfiledOps::rope(std::span<const compute::Row> rows, std::size_t heads, std::size_t head_dim,
                       const compute::Rope& rope, float* x) {
  timed(Operator::kRope, [&] { inner_.rope(rows, heads, head_dim, rope, x); });
}

void ProfiledOps::store_kv(std::span<const compute::Row> rows, const float* keys,
                           const float* values, const compute::KvView& cache) {
  timed(Operator::kStoreKv, [&] { inner_.store_kv(rows, keys, values, cache); });
}

void ProfiledOps::attention(std::span<const compute::Row> rows, const float* queries,
                            const compute::KvView& cache, const compute::Attention& attention,
                            float* y) {
  timed(Operator::kAttention, [&] { inner_.attention(rows, queries, cache, attention, y); });
}

void ProfiledOps::gate(std::size_t count, const float* gate, const float* up,
                       compute::Activation activation, float* y) {
  timed(Operator::kGate, [&] { inner_.gate(count, gate, up, activation, y); });
}

void ProfiledOps::add(std::size_t count, const float* x, float* y) {
  timed(Operator::kAdd, [&] { inner_.add(count, x, y); });
}

void ProfiledOps::scale(std::size_t count, float factor, float* x) {
  timed(Operator::kScale, [&] { inner_.scale(count, factor, x); });
}

void ProfiledOps::softcap(std::size_t count, float cap, float* x) {
  timed(Operator::kSoftcap, [&] { inner_.softcap(count, cap, x); });
}

void ProfiledOps::split(std::size_t rows, std::size_t repeats,
                        std::span<const compute::SplitPart> parts, const float* x) {
  timed(Operator::kSplit, [&] { inner_.split(rows, repeats, parts, x); });
}

void ProfiledOps::gather_rows(std::span<const std::uint32_t> from, std::size_t width,
                              const float* x, float* y) {
  timed(Operator::kGatherRows, [&] { inner_.gather_rows(from, width, x, y); });
}

void ProfiledOps::scatter_add_rows(std::span<const std::uint32_t> to, const float* factors,
                                   std::size_t width, const float* x, float* y) {
  timed(Operator::kScatterAddRows, [&] { inner_.scatter_add_rows(to, factors, width, x, y); });
}

void ProfiledOps::causal_convolution(std::span<const compute::Row> rows, const float* x,
                                     const compute::CausalConvolution& convolution,
                                     const compute::RecurrentView& state, float* y) {
  timed(Operator::kCausalConvolution,
        [&] { inner_.causal_convolution(rows, x, convolution, state, y); });
}

void ProfiledOps::delta_rule(std::span<const compute::Row> rows, const float* queries_keys,
                             const float* values, const float* b, const float* a,
                             const compute::DeltaRule& rule, const compute::RecurrentView& state,
                             float* y) {
  timed(Operator::kDeltaRule,
        [&] { inner_.delta_rule(rows, queries_keys, values, b, a, rule, state, y); });
}

void ProfiledOps::add_rms_norm(std::size_t rows, float* y, std::span<const float> post,
                               std::span<const float> weight, float epsilon, float* x,
                               float* normed) {
  timed(Operator::kAddRmsNorm,
        [&] { inner_.add_rms_norm(rows, y, post, weight, epsilon, x, normed); });
}

void ProfiledOps::norm_rope_store(std::span<const compute::Row> rows, const compute::Heads& heads,
                                  const compute::HeadNorms& norms, const compute::Rope* rope,
                                  const compute::KvView& cache) {
  timed(Operator::kNormRopeStore, [&] { inner_.norm_rope_store(rows, heads, norms, rope, cache); });
}

void ProfiledOps::gate_project(std::size_t rows, float* gates, const float* ups,
                               compute::Activation activation, const compute::Linear& linear,
                               float* y) {
  count_weight(linear);
  timed(Operator::kProject, [&] { inner_.gate_project(rows, gates, ups, activation, linear, y); });
}

}  // namespace espalier::measure
