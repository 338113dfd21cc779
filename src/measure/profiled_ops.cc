#include "measure/profiled_ops.h"

#include "base/timer.h"

namespace espalier::measure {
namespace {

// Adds the time from its construction to its destruction.
class Entry {
 public:
  explicit Entry(OperatorAccount& account) : account_(account) { ++account_.calls; }
  ~Entry() { account_.seconds += timer_.seconds(); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

 private:
  OperatorAccount& account_;
  Timer timer_;
};

}  // namespace

std::string_view operator_name(Operator op) {
  static constexpr std::string_view kNames[kOperators] = {
      "embed", "project", "rms_norm", "rope", "store_kv", "attention", "gate", "add"};
  return kNames[static_cast<std::size_t>(op)];
}

void ProfiledOps::embed(std::span<const compute::Row> rows, const pack::Matrix& table, float* y) {
  const Entry entry(accounts_[static_cast<std::size_t>(Operator::kEmbed)]);
  inner_.embed(rows, table, y);
}

void ProfiledOps::project(std::size_t rows, const float* x, const compute::Linear& linear,
                          float* y) {
  OperatorAccount& account = accounts_[static_cast<std::size_t>(Operator::kProject)];
  const pack::Matrix& w = linear.weight;
  account.weight_bytes += w.data.size() + w.scales.size() + w.zeros.size();
  const Entry entry(account);
  inner_.project(rows, x, linear, y);
}

void ProfiledOps::rms_norm(std::size_t rows, const float* x, std::span<const float> weight,
                           float epsilon, float* y) {
  const Entry entry(accounts_[static_cast<std::size_t>(Operator::kRmsNorm)]);
  inner_.rms_norm(rows, x, weight, epsilon, y);
}

void ProfiledOps::rope(std::span<const compute::Row> rows, std::size_t heads, std::size_t head_dim,
                       const compute::Rope& rope, float* x) {
  const Entry entry(accounts_[static_cast<std::size_t>(Operator::kRope)]);
  inner_.rope(rows, heads, head_dim, rope, x);
}

void ProfiledOps::store_kv(std::span<const compute::Row> rows, const float* keys,
                           const float* values, const compute::KvView& cache) {
  const Entry entry(accounts_[static_cast<std::size_t>(Operator::kStoreKv)]);
  inner_.store_kv(rows, keys, values, cache);
}

void ProfiledOps::attention(std::span<const compute::Row> rows, const float* queries,
                            const compute::KvView& cache, const compute::Attention& attention,
                            float* y) {
  const Entry entry(accounts_[static_cast<std::size_t>(Operator::kAttention)]);
  inner_.attention(rows, queries, cache, attention, y);
}

void ProfiledOps::gate(std::size_t count, const float* gate, const float* up,
                       compute::Activation activation, float* y) {
  const Entry entry(accounts_[static_cast<std::size_t>(Operator::kGate)]);
  inner_.gate(count, gate, up, activation, y);
}

void ProfiledOps::add(std::size_t count, const float* x, float* y) {
  const Entry entry(accounts_[static_cast<std::size_t>(Operator::kAdd)]);
  inner_.add(count, x, y);
}

}  // namespace espalier::measure
