// Gated delta nets: the reference against their equations in double, the CPU backend against the
// reference with every instruction set, and both against themselves in other batches.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

#include "compute/cpu/cpu_ops.h"
#include "compute/cpu/targets.h"
#include "compute/reference/reference.h"
#include "hwy/highway.h"

namespace espalier::compute {
namespace {

class Numbers {
 public:
  std::vector<float> operator()(std::size_t count, float spread = 1) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

 private:
  std::mt19937 random_{5};
};

// The state of two sequences, full of what earlier requests left.
class State {
 public:
  State(std::size_t convolution, std::size_t memory)
      : convolution_(2 * convolution, 77), memory_(2 * memory, 77) {
    view = {.convolution = convolution_.data(),
            .memory = memory_.data(),
            .convolution_size = convolution,
            .memory_size = memory};
  }
  RecurrentView view;

 private:
  std::vector<float> convolution_, memory_;
};

std::vector<Row> sequence_rows(std::size_t count) {
  std::vector<Row> rows(count);
  for (std::size_t r = 0; r < count; ++r) rows[r].position = static_cast<std::int32_t>(r);
  return rows;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected,
                 float tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << i;
  }
}

// A convolution or a rule of some size with the inputs of kRows rows.
constexpr std::size_t kRows = 19;

struct ConvolutionCase {
  ConvolutionCase(std::size_t channels, std::size_t kernel) {
    Numbers numbers;
    convolution = {.channels = channels, .kernel = kernel, .weight = numbers(kernel * channels)};
    x = numbers(kRows * channels);
  }

  std::vector<float> run(Ops& ops, std::size_t chunk) const {
    State state(convolution.state_size(), 0);
    const auto rows = sequence_rows(kRows);
    std::vector<float> y = x;  // in place
    for (std::size_t r = 0; r < kRows; r += chunk) {
      float* part = y.data() + r * convolution.channels;
      ops.causal_convolution(std::span(rows).subspan(r, std::min(chunk, kRows - r)), part,
                             convolution, state.view, part);
    }
    return y;
  }

  CausalConvolution convolution;
  std::vector<float> x;
};

TEST(ReferenceConvolution, IsItsEquation) {
  const ConvolutionCase c(5, 4);
  const auto y = c.run(*reference::make_ops(), kRows);
  for (std::size_t t = 0; t < kRows; ++t) {
    for (std::size_t channel = 0; channel < 5; ++channel) {
      double sum = 0;
      for (std::size_t j = 0; j < 4; ++j) {
        if (t + j < 3) continue;
        sum += static_cast<double>(c.convolution.weight[j * 5 + channel]) *
               c.x[(t + j - 3) * 5 + channel];
      }
      EXPECT_NEAR(y[t * 5 + channel], sum / (1 + std::exp(-sum)), 1e-6);
    }
  }
}

struct RuleCase {
  RuleCase(std::size_t key_heads, std::size_t value_heads, std::size_t key_dim,
           std::size_t value_dim, KeyHeadOrder order) {
    Numbers numbers;
    rule = {.key_heads = key_heads,
            .value_heads = value_heads,
            .key_dim = key_dim,
            .value_dim = value_dim,
            .order = order,
            .scale = 1 / std::sqrt(static_cast<float>(key_dim)),
            .rate = numbers(value_heads),
            .dt_bias = numbers(value_heads)};
    for (float& rate : rule.rate) rate = -std::exp(rate - 2);
    queries_keys = numbers(kRows * 2 * key_heads * key_dim);
    reference::make_ops()->l2_norm(kRows * 2 * key_heads, key_dim, queries_keys.data(), 1e-6f,
                                   queries_keys.data());
    values = numbers(kRows * value_heads * value_dim);
    b = numbers(kRows * value_heads);
    a = numbers(kRows * value_heads);
  }

  std::vector<float> run(Ops& ops, std::size_t chunk) const {
    State state(0, rule.memory_size());
    const auto rows = sequence_rows(kRows);
    std::vector<float> y(values.size());
    for (std::size_t r = 0; r < kRows; r += chunk) {
      ops.delta_rule(std::span(rows).subspan(r, std::min(chunk, kRows - r)),
                     queries_keys.data() + r * 2 * rule.key_heads * rule.key_dim,
                     values.data() + r * rule.value_heads * rule.value_dim,
                     b.data() + r * rule.value_heads, a.data() + r * rule.value_heads, rule,
                     state.view, y.data() + r * rule.value_heads * rule.value_dim);
    }
    return y;
  }

  // As the paper and Transformers write it: S decays, is read by the key, corrected, and read by
  // the query.
  [[nodiscard]] std::vector<float> expected() const {
    const std::size_t dk = rule.key_dim, dv = rule.value_dim, heads = rule.value_heads;
    std::vector<float> y(values.size());
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t key_head =
          rule.order == KeyHeadOrder::kTiled ? h % rule.key_heads : h * rule.key_heads / heads;
      std::vector<double> s(dk * dv);
      for (std::size_t t = 0; t < kRows; ++t) {
        const float* q = queries_keys.data() + (t * 2 * rule.key_heads + key_head) * dk;
        const float* k = q + rule.key_heads * dk;
        const double step =
            std::log1p(std::exp(static_cast<double>(a[t * heads + h]) + rule.dt_bias[h]));
        for (double& element : s) element *= std::exp(rule.rate[h] * step);
        for (std::size_t v = 0; v < dv; ++v) {
          double held = 0;
          for (std::size_t i = 0; i < dk; ++i) held += s[i * dv + v] * k[i];
          const double delta = (values[(t * heads + h) * dv + v] - held) /
                               (1 + std::exp(-static_cast<double>(b[t * heads + h])));
          double read = 0;
          for (std::size_t i = 0; i < dk; ++i) {
            s[i * dv + v] += k[i] * delta;
            read += s[i * dv + v] * q[i];
          }
          y[(t * heads + h) * dv + v] =
              static_cast<float>(read / std::sqrt(static_cast<double>(dk)));
        }
      }
    }
    return y;
  }

  DeltaRule rule;
  std::vector<float> queries_keys, values, b, a;
};

TEST(ReferenceDeltaRule, IsItsEquation) {
  for (const KeyHeadOrder order : {KeyHeadOrder::kGrouped, KeyHeadOrder::kTiled}) {
    const RuleCase c(2, 6, 10, 20, order);
    expect_near(c.run(*reference::make_ops(), kRows), c.expected(), 1e-6f);
  }
}

TEST(ReferenceDeltaRule, ChunksContinueTheSequence) {
  const RuleCase c(1, 2, 8, 16, KeyHeadOrder::kGrouped);
  const auto ops = reference::make_ops();
  const auto whole = c.run(*ops, kRows);
  EXPECT_EQ(c.run(*ops, 7), whole);
  EXPECT_EQ(c.run(*ops, 1), whole);
}

class CpuDeltaNetTest : public testing::TestWithParam<std::int64_t> {
 protected:
  CpuDeltaNetTest() { hwy::SetSupportedTargetsForTest(GetParam()); }
  ~CpuDeltaNetTest() override { hwy::SetSupportedTargetsForTest(0); }

  std::unique_ptr<Ops> reference_ = reference::make_ops();
  std::unique_ptr<Ops> one_ = cpu::make_ops(1);
  std::unique_ptr<Ops> three_ = cpu::make_ops(3);
};

TEST_P(CpuDeltaNetTest, Convolution) {
  for (const std::size_t channels : {1, 63, 64, 200, 513}) {
    for (const std::size_t kernel : {1, 2, 4}) {
      const ConvolutionCase c(channels, kernel);
      const auto y = c.run(*one_, kRows);
      expect_near(y, c.run(*reference_, kRows), 2e-6f);
      EXPECT_EQ(c.run(*three_, kRows), y);
      EXPECT_EQ(c.run(*three_, 7), y);
      EXPECT_EQ(c.run(*one_, 1), y);
    }
  }
}

TEST_P(CpuDeltaNetTest, DeltaRule) {
  const RuleCase cases[] = {{1, 1, 1, 1, KeyHeadOrder::kGrouped},
                            {2, 4, 19, 37, KeyHeadOrder::kTiled},
                            {2, 6, 64, 64, KeyHeadOrder::kGrouped},
                            {4, 4, 128, 128, KeyHeadOrder::kGrouped}};
  for (const RuleCase& c : cases) {
    const auto y = c.run(*one_, kRows);
    expect_near(y, c.run(*reference_, kRows), 1e-5f);
    EXPECT_EQ(c.run(*three_, kRows), y);
    EXPECT_EQ(c.run(*three_, 7), y);
    EXPECT_EQ(c.run(*one_, 1), y);
  }
}

// A whole layer of random float weights.
class Net {
 public:
  static constexpr std::size_t kHidden = 20, kKeyHeads = 2, kValueHeads = 4, kKeyDim = 9,
                               kValueDim = 18;
  static constexpr std::size_t kKeys = kKeyHeads * kKeyDim, kValues = kValueHeads * kValueDim;

  Net() {
    net.rule = {.key_heads = kKeyHeads,
                .value_heads = kValueHeads,
                .key_dim = kKeyDim,
                .value_dim = kValueDim,
                .scale = 1 / 3.0f,
                .rate = std::vector<float>(kValueHeads, -0.2f),
                .dt_bias = numbers_(kValueHeads)};
    net.qkv = linear(2 * kKeys + kValues);
    net.z = linear(kValues);
    net.b = linear(kValueHeads);
    net.a = linear(kValueHeads);
    net.convolution = {.channels = 2 * kKeys + kValues,
                       .kernel = 4,
                       .weight = numbers_(4 * (2 * kKeys + kValues))};
    net.norm = numbers_(kValueDim);
    net.output = {.weight = matrix(storage_.emplace_back(numbers_(kHidden * kValues)), kHidden)};
    x = numbers_(kRows * kHidden);
  }

  // The same weights in the order of Qwen3-Next's fused projections.
  void fuse() {
    std::vector<float>& qkvz = storage_.emplace_back();
    std::vector<float>& ba = storage_.emplace_back();
    const auto append = [](std::vector<float>& to, const Linear& from, std::size_t first,
                           std::size_t count) {
      const auto* rows = reinterpret_cast<const float*>(from.weight.data.data());
      to.insert(to.end(), rows + first * kHidden, rows + (first + count) * kHidden);
    };
    constexpr std::size_t kHeadValues = kValues / kKeyHeads, kShare = kValueHeads / kKeyHeads;
    for (std::size_t h = 0; h < kKeyHeads; ++h) {
      append(qkvz, net.qkv, h * kKeyDim, kKeyDim);
      append(qkvz, net.qkv, kKeys + h * kKeyDim, kKeyDim);
      append(qkvz, net.qkv, 2 * kKeys + h * kHeadValues, kHeadValues);
      append(qkvz, net.z, h * kHeadValues, kHeadValues);
      append(ba, net.b, h * kShare, kShare);
      append(ba, net.a, h * kShare, kShare);
    }
    net.qkvz.weight = matrix(qkvz, 2 * kKeys + 2 * kValues);
    net.ba.weight = matrix(ba, 2 * kValueHeads);
    net.qkv = net.z = net.b = net.a = {};
  }

  // Rows of two sequences, the second of which runs `x` backwards.
  std::vector<float> run(Ops& ops, std::size_t chunk) const {
    State state(net.convolution.state_size(), net.rule.memory_size());
    std::vector<Row> rows;
    std::vector<float> input;
    for (std::size_t r = 0; r < kRows; ++r) {
      for (const std::size_t sequence : {0, 1}) {
        rows.push_back({.sequence = static_cast<std::int32_t>(sequence),
                        .position = static_cast<std::int32_t>(r)});
        const auto row = x.begin() + (sequence == 0 ? r : kRows - 1 - r) * kHidden;
        input.insert(input.end(), row, row + kHidden);
      }
    }
    std::vector<float> y(input.size());
    for (std::size_t r = 0; r < rows.size(); r += chunk) {
      ops.gated_delta_net(std::span(rows).subspan(r, std::min(chunk, rows.size() - r)),
                          input.data() + r * kHidden, net, state.view, y.data() + r * kHidden);
    }
    return y;
  }

  GatedDeltaNet net;
  std::vector<float> x;

 private:
  static pack::Matrix matrix(const std::vector<float>& values, std::size_t rows) {
    return *pack::block_matrix(*pack::find_format("F32"), rows, values.size() / rows,
                               std::as_bytes(std::span(values)));
  }
  Linear linear(std::size_t rows) {
    return {.weight = matrix(storage_.emplace_back(numbers_(rows * kHidden, 0.3f)), rows)};
  }

  Numbers numbers_;
  std::deque<std::vector<float>> storage_;
};

TEST_P(CpuDeltaNetTest, WholeLayer) {
  const Net net;
  const auto y = net.run(*one_, 2 * kRows);
  expect_near(y, net.run(*reference_, 2 * kRows), 1e-4f);
  for (const std::size_t chunk : {1, 7}) {
    EXPECT_EQ(net.run(*three_, chunk), y);
    EXPECT_EQ(net.run(*reference_, chunk), net.run(*reference_, 2 * kRows));
  }
}

TEST_P(CpuDeltaNetTest, FusedProjectionsAreTheSame) {
  Net net;
  const auto y = net.run(*three_, 7);
  const auto expected = net.run(*reference_, 7);
  net.fuse();
  EXPECT_EQ(net.run(*reference_, 7), expected);
  EXPECT_EQ(net.run(*three_, 7), y);
}

TEST(ReferenceOps, L2NormHasLengthOne) {
  const std::vector<float> x = {3, 4, 0, 0, 1e-3f, 0, 0, 0};
  std::vector<float> y(8);
  reference::make_ops()->l2_norm(2, 4, x.data(), 1e-6f, y.data());
  EXPECT_NEAR(y[0], 0.6, 1e-6);
  EXPECT_NEAR(y[1], 0.8, 1e-6);
  EXPECT_NEAR(y[4], 1 / std::sqrt(2.0), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuDeltaNetTest,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

}  // namespace
}  // namespace espalier::compute
