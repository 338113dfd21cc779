// Operators that do what another backend does, and keep account of it.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "compute/ops.h"

namespace espalier::measure {

// The operators that a pass consists of: small ones, and those that backends fuse of them.
enum class Operator {
  kEmbed,
  kProject,
  kRmsNorm,
  kRope,
  kStoreKv,
  kAttention,
  kGate,
  kAdd,
  kScale,
  kSoftcap,
  kSplit,
  kGatherRows,
  kScatterAddRows,
  kCausalConvolution,
  kDeltaRule,
  kAddRmsNorm,
  kNormRopeStore,
};
inline constexpr std::size_t kOperators = 17;

[[nodiscard]] std::string_view operator_name(Operator op);

// What was done since the last reset().
struct OperatorAccount {
  std::size_t calls = 0;
  double seconds = 0;
  std::size_t weight_bytes = 0;  // of the packed matrices that products read
};

// Other large operators go by their definition, part by part. A product whose inputs are gated is a
// product.
class ProfiledOps final : public compute::Ops {
 public:
  explicit ProfiledOps(compute::Ops& inner) : inner_(inner) {}

  [[nodiscard]] const OperatorAccount& account(Operator op) const {
    return accounts_[static_cast<std::size_t>(op)];
  }
  [[nodiscard]] std::vector<OperatorAccount> accounts() const {
    return {accounts_.begin(), accounts_.end()};
  }
  void reset() { accounts_ = {}; }

  void embed(std::span<const compute::Row> rows, const pack::Matrix& table, float* y) override;
  void project(std::size_t rows, const float* x, const compute::Linear& linear, float* y) override;
  void project_all(std::size_t rows, const float* x,
                   std::span<const compute::Projection> projections) override;
  void rms_norm(std::size_t rows, const float* x, std::span<const float> weight, float epsilon,
                float* y) override;
  void rope(std::span<const compute::Row> rows, std::size_t heads, std::size_t head_dim,
            const compute::Rope& rope, float* x) override;
  void store_kv(std::span<const compute::Row> rows, const float* keys, const float* values,
                const compute::KvView& cache) override;
  void attention(std::span<const compute::Row> rows, const float* queries,
                 const compute::KvView& cache, const compute::Attention& attention,
                 float* y) override;
  void gate(std::size_t count, const float* gate, const float* up, compute::Activation activation,
            float* y) override;
  void add(std::size_t count, const float* x, float* y) override;
  void scale(std::size_t count, float factor, float* x) override;
  void softcap(std::size_t count, float cap, float* x) override;
  void split(std::size_t rows, std::size_t repeats, std::span<const compute::SplitPart> parts,
             const float* x) override;
  void gather_rows(std::span<const std::uint32_t> from, std::size_t width, const float* x,
                   float* y) override;
  void scatter_add_rows(std::span<const std::uint32_t> to, const float* factors, std::size_t width,
                        const float* x, float* y) override;
  void causal_convolution(std::span<const compute::Row> rows, const float* x,
                          const compute::CausalConvolution& convolution,
                          const compute::RecurrentView& state, float* y) override;
  void delta_rule(std::span<const compute::Row> rows, const float* queries_keys,
                  const float* values, const float* b, const float* a,
                  const compute::DeltaRule& rule, const compute::RecurrentView& state,
                  float* y) override;
  void add_rms_norm(std::size_t rows, float* y, std::span<const float> post,
                    std::span<const float> weight, float epsilon, float* x, float* normed) override;
  void norm_rope_store(std::span<const compute::Row> rows, const compute::Heads& heads,
                       const compute::HeadNorms& norms, const compute::Rope* rope,
                       const compute::KvView& cache) override;
  void gate_project(std::size_t rows, float* gates, const float* ups,
                    compute::Activation activation, const compute::Linear& linear,
                    float* y) override;

 private:
  // Does `work` and books its time on `op`.
  template <typename Work>
  void timed(Operator op, const Work& work);

  void count_weight(const compute::Linear& linear);

  compute::Ops& inner_;
  std::array<OperatorAccount, kOperators> accounts_;
};

}  // namespace espalier::measure
