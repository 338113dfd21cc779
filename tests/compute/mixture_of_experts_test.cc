// Routing by hand, and mixtures of experts on both backends against their equation in double.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

#include "compute/cpu/cpu_ops.h"
#include "compute/reference/reference.h"
#include "compute/routing.h"

namespace espalier::compute {
namespace {

std::vector<ExpertChoice> choose(const Router& router, const std::vector<float>& outputs) {
  std::vector<ExpertChoice> choices(router.top_k);
  route(router, outputs, choices);
  return choices;
}

TEST(Routing, SoftmaxWeightsOfAllOrOfTheChosen) {
  Router router = {.top_k = 2};
  const std::vector<float> outputs = {0, std::log(3.0f), std::log(4.0f), 0};
  auto choices = choose(router, outputs);
  EXPECT_EQ(choices[0].expert, 2u);
  EXPECT_EQ(choices[1].expert, 1u);
  EXPECT_FLOAT_EQ(choices[0].weight, 4 / 9.0f);
  EXPECT_FLOAT_EQ(choices[1].weight, 3 / 9.0f);
  router.renormalize = true;
  router.scale = 2;
  choices = choose(router, outputs);
  EXPECT_FLOAT_EQ(choices[0].weight, 8 / 7.0f);
  EXPECT_FLOAT_EQ(choices[1].weight, 6 / 7.0f);
}

TEST(Routing, EqualScoresGoToTheFirst) {
  const Router router = {.top_k = 3};
  const auto choices = choose(router, {1, 2, 1, 2, 1});
  EXPECT_EQ(choices[0].expert, 1u);
  EXPECT_EQ(choices[1].expert, 3u);
  EXPECT_EQ(choices[2].expert, 0u);
}

TEST(Routing, ABiasChoosesAndDoesNotWeigh) {
  const Router router = {.top_k = 2,
                         .scores = ExpertScores::kSigmoid,
                         .selection_bias = {0.5f, 0, 0, 0},
                         .renormalize = true,
                         .scale = 2.5f};
  const auto choices = choose(router, {0, 3, 1, -1});  // sigmoids 0.5, 0.953, 0.731, 0.269
  EXPECT_EQ(choices[0].expert, 0u);
  EXPECT_EQ(choices[1].expert, 1u);
  const double high = 1 / (1 + std::exp(-3.0));
  EXPECT_FLOAT_EQ(choices[0].weight, static_cast<float>(2.5 * 0.5 / (0.5 + high)));
  EXPECT_FLOAT_EQ(choices[1].weight, static_cast<float>(2.5 * high / (0.5 + high)));
}

TEST(Routing, AllExpertsAndHugeOutputs) {
  const Router router = {.top_k = 2, .renormalize = true};
  const auto choices = choose(router, {-3e38f, 3e38f});
  EXPECT_EQ(choices[0].expert, 1u);
  EXPECT_EQ(choices[0].weight, 1);
  EXPECT_EQ(choices[1].expert, 0u);
  EXPECT_EQ(choices[1].weight, 0);
}

TEST(Routing, GroupsAreSortedByExpertAndRow) {
  Workspace workspace;
  const std::vector<ExpertChoice> choices = {{2, 0.5f}, {0, 0.25f}, {0, 1},
                                             {2, 2},    {3, 3},     {2, 4}};  // three rows
  const ExpertGroups groups = group_by_expert(choices, 2, 5, workspace);
  EXPECT_EQ(std::vector(groups.begin.begin(), groups.begin.end()),
            (std::vector<std::uint32_t>{0, 2, 2, 5, 6, 6}));
  EXPECT_EQ(std::vector(groups.rows.begin(), groups.rows.end()),
            (std::vector<std::uint32_t>{0, 1, 0, 1, 2, 2}));
  EXPECT_EQ(std::vector(groups.weights.begin(), groups.weights.end()),
            (std::vector<float>{0.25f, 1, 0.5f, 2, 4, 3}));
}

// A mixture of random float weights; odd sizes fill no vector.
class Mixture {
 public:
  static constexpr std::size_t kHidden = 24, kInner = 18, kExperts = 7, kRows = 11;

  Mixture() {
    moe.router = {.linear = linear(kExperts, kHidden), .top_k = 3, .renormalize = true};
    for (std::size_t e = 0; e < kExperts; ++e) {
      moe.experts.push_back({.gate = linear(kInner, kHidden),
                             .up = linear(kInner, kHidden),
                             .down = linear(kHidden, kInner)});
    }
    moe.shared = {.gate = linear(kInner + 1, kHidden),
                  .up = linear(kInner + 1, kHidden),
                  .down = linear(kHidden, kInner + 1)};
    moe.shared_gate = linear(1, kHidden);
    x = numbers(kRows * kHidden);
  }

  std::vector<float> run(Ops& ops, std::size_t first, std::size_t count) const {
    std::vector<float> y(count * kHidden, 99);
    ops.mixture_of_experts(count, x.data() + first * kHidden, moe, y.data());
    return y;
  }

  // The equation, row by row.
  [[nodiscard]] std::vector<double> expected() const {
    std::vector<double> y;
    for (std::size_t r = 0; r < kRows; ++r) {
      const std::vector<double> row(x.begin() + r * kHidden, x.begin() + (r + 1) * kHidden);
      const std::vector<double> outputs = product(moe.router.linear, row);
      std::vector<std::size_t> order(kExperts);
      for (std::size_t e = 0; e < kExperts; ++e) order[e] = e;
      std::sort(order.begin(), order.end(),
                [&](std::size_t a, std::size_t b) { return outputs[a] > outputs[b]; });
      double total = 0;
      for (std::size_t i = 0; i < moe.router.top_k; ++i) total += std::exp(outputs[order[i]]);
      std::vector<double> sum(kHidden);
      const auto add = [&](double weight, const GatedMlp& mlp) {
        const std::vector<double> part = output(mlp, row);
        for (std::size_t i = 0; i < kHidden; ++i) sum[i] += weight * part[i];
      };
      for (std::size_t i = 0; i < moe.router.top_k; ++i) {
        add(std::exp(outputs[order[i]]) / total, moe.experts[order[i]]);
      }
      if (moe.shared) {
        add(moe.shared_gate ? 1 / (1 + std::exp(-product(*moe.shared_gate, row)[0])) : 1,
            *moe.shared);
      }
      y.insert(y.end(), sum.begin(), sum.end());
    }
    return y;
  }

  // Stores gate and up rows in turn, as gpt-oss does.
  void interleave() {
    for (GatedMlp& expert : moe.experts) {
      std::vector<float>& both = storage_.emplace_back();
      const std::vector<float> bias = numbers(2 * kInner);
      expert.gate.bias.clear();
      for (std::size_t i = 0; i < kInner; ++i) {
        const auto* gate = reinterpret_cast<const float*>(expert.gate.weight.data.data());
        const auto* up = reinterpret_cast<const float*>(expert.up.weight.data.data());
        both.insert(both.end(), gate + i * kHidden, gate + (i + 1) * kHidden);
        both.insert(both.end(), up + i * kHidden, up + (i + 1) * kHidden);
      }
      expert.up = {};
      expert.gate = {.weight = matrix(both, 2 * kInner, kHidden)};
      expert.layout = GateUp::kInterleaved;
    }
  }

  MixtureOfExperts moe;
  std::vector<float> x;

 private:
  static pack::Matrix matrix(const std::vector<float>& values, std::size_t rows, std::size_t cols) {
    return *pack::block_matrix(*pack::find_format("F32"), rows, cols,
                               std::as_bytes(std::span(values)));
  }

  Linear linear(std::size_t rows, std::size_t cols) {
    const std::vector<float>& values = storage_.emplace_back(numbers(rows * cols));
    return {.weight = matrix(values, rows, cols), .bias = numbers(rows)};
  }

  std::vector<float> numbers(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_) / 2;
    return values;
  }

  static std::vector<double> product(const Linear& linear, const std::vector<double>& x) {
    const auto* w = reinterpret_cast<const float*>(linear.weight.data.data());
    std::vector<double> y(linear.bias.begin(), linear.bias.end());
    for (std::size_t o = 0; o < y.size(); ++o) {
      for (std::size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    }
    return y;
  }

  static std::vector<double> output(const GatedMlp& mlp, const std::vector<double>& x) {
    std::vector<double> inner = product(mlp.gate, x);
    const std::vector<double> up = product(mlp.up, x);
    for (std::size_t i = 0; i < inner.size(); ++i) inner[i] *= up[i] / (1 + std::exp(-inner[i]));
    return product(mlp.down, inner);
  }

  std::mt19937 random_{3};
  std::deque<std::vector<float>> storage_;
};

void expect_near(const std::vector<float>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 2e-5) << i;
}

class MixtureOfExpertsTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<Ops> ops() {
    return std::string_view(GetParam()) == "reference" ? reference::make_ops() : cpu::make_ops(3);
  }
};

TEST_P(MixtureOfExpertsTest, IsItsEquation) {
  Mixture mixture;
  expect_near(mixture.run(*ops(), 0, Mixture::kRows), mixture.expected());
  mixture.moe.shared_gate.reset();
  expect_near(mixture.run(*ops(), 0, Mixture::kRows), mixture.expected());
  mixture.moe.shared.reset();
  expect_near(mixture.run(*ops(), 0, Mixture::kRows), mixture.expected());
}

TEST_P(MixtureOfExpertsTest, ARowHasTheSameBitsWhateverRowsTravelWithIt) {
  const Mixture mixture;
  const auto backend = ops();
  const auto all = mixture.run(*backend, 0, Mixture::kRows);
  for (const std::size_t chunk : {1, 4}) {
    std::vector<float> parts;
    for (std::size_t r = 0; r < Mixture::kRows; r += chunk) {
      const auto part = mixture.run(*backend, r, std::min(chunk, Mixture::kRows - r));
      parts.insert(parts.end(), part.begin(), part.end());
    }
    EXPECT_EQ(parts, all);
  }
  EXPECT_EQ(mixture.run(*backend, 0, 0), std::vector<float>());
}

TEST_P(MixtureOfExpertsTest, InterleavedGatesAndUpsAreTheSame) {
  Mixture mixture;
  for (GatedMlp& expert : mixture.moe.experts) {
    expert.gate.bias.clear();
    expert.up.bias.clear();
  }
  const auto separate = mixture.run(*ops(), 0, Mixture::kRows);
  mixture.interleave();
  EXPECT_EQ(mixture.run(*ops(), 0, Mixture::kRows), separate);
}

INSTANTIATE_TEST_SUITE_P(Backends, MixtureOfExpertsTest, ::testing::Values("reference", "cpu"));

}  // namespace
}  // namespace espalier::compute
