#include "compute/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>

#include "base/half.h"

namespace espalier::reference {
namespace {

using compute::KvType;
using compute::KvView;
using compute::Row;

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

pack::Matrix f32_matrix(const std::vector<float>& values, std::size_t rows, std::size_t cols) {
  return *pack::block_matrix(*pack::find_format("F32"), rows, cols,
                             std::as_bytes(std::span(values)));
}

TEST(ReferenceProject, IsTheMatrixProductAtSizesWithTails) {
  for (const std::size_t rows : {1, 3}) {
    for (const std::size_t outputs : {1, 15, 16, 33}) {
      for (const std::size_t inputs : {1, 7, 8, 19}) {
        const auto x = random_floats(rows * inputs, 1);
        const auto w = random_floats(outputs * inputs, 2);
        std::vector<float> y(rows * outputs);
        project(rows, x.data(), f32_matrix(w, outputs, inputs), y.data());
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t o = 0; o < outputs; ++o) {
            long double sum = 0;
            for (std::size_t i = 0; i < inputs; ++i) {
              sum += static_cast<long double>(x[r * inputs + i]) * w[o * inputs + i];
            }
            EXPECT_FLOAT_EQ(y[r * outputs + o], static_cast<float>(sum));
          }
        }
      }
    }
  }
}

TEST(ReferenceOps, ProjectAddsTheBiasToEveryRow) {
  const std::vector<float> w = {1, 2, 3, 4};
  const std::vector<float> x = {1, 0, 0, 1};
  std::vector<float> y(4);
  make_ops()->project(2, x.data(), {.weight = f32_matrix(w, 2, 2), .bias = {10, 20}}, y.data());
  EXPECT_EQ(y, (std::vector<float>{11, 23, 12, 24}));
}

TEST(ReferenceOps, RmsNormHasUnitMeanSquare) {
  const std::vector<float> x = {3, 4, 0, 0};
  std::vector<float> y(4);
  make_ops()->rms_norm(1, x.data(), std::vector<float>{1, 1, 1, 2}, 0, y.data());
  EXPECT_FLOAT_EQ(y[0], 3 / 2.5f);
  EXPECT_FLOAT_EQ(y[1], 4 / 2.5f);
  EXPECT_EQ(y[3], 0);
}

TEST(ReferenceOps, RopeTurnsPairsAndLeavesTheRest) {
  const compute::Rope quarter_turn = {.pairs = compute::RopePairs::kHalves,
                                      .frequencies = {std::numbers::pi / 2, 0}};
  std::vector<float> x = {1, 2, 3, 4, 5};
  const std::vector<Row> rows = {{.position = 1}};
  make_ops()->rope(rows, 1, 5, quarter_turn, x.data());
  const std::vector<float> halves = {-3, 2, 1, 4, 5};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(x[i], halves[i], 1e-6) << i;

  compute::Rope interleaved = quarter_turn;
  interleaved.pairs = compute::RopePairs::kInterleaved;
  x = {1, 2, 3, 4, 5};
  make_ops()->rope(rows, 1, 5, interleaved, x.data());
  const std::vector<float> neighbours = {-2, 1, 3, 4, 5};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(x[i], neighbours[i], 1e-6) << i;
}

class ReferenceAttention : public ::testing::Test {
 protected:
  static constexpr std::size_t kPositions = 6, kKvHeads = 2, kDim = 4;

  ReferenceAttention() {
    for (std::int32_t p = 0; p < static_cast<std::int32_t>(kPositions); ++p) {
      rows_.push_back({.sequence = 1, .position = p});
    }
    ops_->store_kv(rows_, k_.data(), v_.data(), cache_);
  }

  std::unique_ptr<compute::Ops> ops_ = make_ops();
  std::vector<float> k_ = random_floats(kPositions * kKvHeads * kDim, 3);
  std::vector<float> v_ = random_floats(kPositions * kKvHeads * kDim, 4);
  std::vector<std::byte> keys_ = std::vector<std::byte>(2 * kPositions * kKvHeads * kDim * 4);
  std::vector<std::byte> values_ = keys_;
  KvView cache_ = {KvType::kF32, keys_.data(), values_.data(), kKvHeads, kDim, kPositions};
  std::vector<Row> rows_;
};

TEST_F(ReferenceAttention, IsSoftmaxOverThePastOfTheRowsSequence) {
  for (const std::size_t window : {0, 1, 3, 100}) {
    const compute::Attention attention = {
        .heads = 4, .kv_heads = kKvHeads, .head_dim = kDim, .scale = 0.5f, .window = window};
    const auto q = random_floats(kPositions * 4 * kDim, 5);
    std::vector<float> y(q.size());
    ops_->attention(rows_, q.data(), cache_, attention, y.data());
    for (std::size_t r = 0; r < kPositions; ++r) {
      for (std::size_t h = 0; h < 4; ++h) {
        double total = 0;
        std::vector<double> expected(kDim);
        for (std::size_t p = 0; p <= r; ++p) {
          if (window != 0 && r - p >= window) continue;
          double score = 0;
          for (std::size_t i = 0; i < kDim; ++i) {
            score += q[(r * 4 + h) * kDim + i] * k_[(p * kKvHeads + h / 2) * kDim + i];
          }
          total += std::exp(score / 2);
          for (std::size_t i = 0; i < kDim; ++i) {
            expected[i] += std::exp(score / 2) * v_[(p * kKvHeads + h / 2) * kDim + i];
          }
        }
        for (std::size_t i = 0; i < kDim; ++i) {
          EXPECT_NEAR(y[(r * 4 + h) * kDim + i], expected[i] / total, 1e-5) << window;
        }
      }
    }
  }
}

TEST_F(ReferenceAttention, SoftcapBoundsScoresAndSinksTakeTheirShare) {
  const auto q = random_floats(kPositions * 2 * kDim, 5);
  const std::vector<float> sinks = {0.25f, -1};
  const compute::Attention attention = {.heads = 2,
                                        .kv_heads = kKvHeads,
                                        .head_dim = kDim,
                                        .scale = 3,
                                        .softcap = 1.5f,
                                        .sinks = sinks};
  std::vector<float> y(q.size());
  ops_->attention(rows_, q.data(), cache_, attention, y.data());
  for (std::size_t r = 0; r < kPositions; ++r) {
    for (std::size_t h = 0; h < 2; ++h) {
      double total = std::exp(sinks[h]);
      std::vector<double> expected(kDim);
      for (std::size_t p = 0; p <= r; ++p) {
        double score = 0;
        for (std::size_t i = 0; i < kDim; ++i) {
          score += q[(r * 2 + h) * kDim + i] * k_[(p * kKvHeads + h) * kDim + i];
        }
        const double weight = std::exp(1.5 * std::tanh(3 * score / 1.5));
        total += weight;
        for (std::size_t i = 0; i < kDim; ++i) {
          expected[i] += weight * v_[(p * kKvHeads + h) * kDim + i];
        }
      }
      for (std::size_t i = 0; i < kDim; ++i) {
        EXPECT_NEAR(y[(r * 2 + h) * kDim + i], expected[i] / total, 1e-5);
      }
    }
  }
}

TEST_F(ReferenceAttention, HalfPrecisionCacheRoundsWhatItStores) {
  KvView half = cache_;
  half.type = KvType::kF16;
  ops_->store_kv(rows_, k_.data(), v_.data(), half);
  // A window of one position returns the stored value itself.
  const compute::Attention attention = {
      .heads = 2, .kv_heads = kKvHeads, .head_dim = kDim, .scale = 1, .window = 1};
  std::vector<float> y(k_.size());
  ops_->attention(rows_, k_.data(), half, attention, y.data());
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(y[i], half_to_float(float_to_half(v_[i])));
  }
}

// Values of GELU's tanh form by PyTorch; silu and the sigmoid follow from their definitions.
TEST(ReferenceOps, Activations) {
  const auto activated = [](compute::Activation activation, float x) {
    const float up = 2;
    float y = 0;
    make_ops()->gate(1, &x, &up, activation, &y);
    return y / 2;
  };
  EXPECT_FLOAT_EQ(activated(compute::Activation::kGeluTanh, 1), 0.84119199f);
  EXPECT_FLOAT_EQ(activated(compute::Activation::kGeluTanh, -2), -0.04540231f);
  EXPECT_FLOAT_EQ(activated(compute::Activation::kGeluTanh, 0.5f), 0.34571401f);
  EXPECT_FLOAT_EQ(activated(compute::Activation::kSigmoid, 2), 0.88079708f);
  EXPECT_FLOAT_EQ(activated(compute::Activation::kSilu, -1), -0.26894142f);
}

// Within its bounds c·σ(1.702·c)·(up + 1); a gate beyond 7 counts as 7, an up beyond ±7 as ±7.
TEST(ReferenceOps, ClampedSwiglu) {
  const std::vector<float> gates = {1, 7, 8, -100, 2, 2, 2};
  const std::vector<float> ups = {0.5f, 0, 0, 1, 7, 9, -9};
  std::vector<float> y(gates.size());
  make_ops()->gate(y.size(), gates.data(), ups.data(), compute::Activation::kClampedSwiglu,
                   y.data());
  EXPECT_FLOAT_EQ(y[0], static_cast<float>(1.5 / (1 + std::exp(-1.702))));
  EXPECT_FLOAT_EQ(y[1], static_cast<float>(7 / (1 + std::exp(-1.702 * 7))));
  EXPECT_EQ(y[2], y[1]);
  EXPECT_NEAR(y[3], 0, 1e-6);
  EXPECT_FLOAT_EQ(y[4], static_cast<float>(2 * 8 / (1 + std::exp(-1.702 * 2))));
  EXPECT_EQ(y[5], y[4]);
  EXPECT_FLOAT_EQ(y[6], y[4] * -6 / 8);
}

TEST(ReferenceOps, GatedMlpIsItsParts) {
  const auto ops = make_ops();
  const auto gate = random_floats(3 * 2, 1), up = random_floats(3 * 2, 2);
  const auto down = random_floats(2 * 3, 3), x = random_floats(2, 4);
  const compute::GatedMlp mlp = {.gate = {.weight = f32_matrix(gate, 3, 2)},
                                 .up = {.weight = f32_matrix(up, 3, 2)},
                                 .down = {.weight = f32_matrix(down, 2, 3)}};
  std::vector<float> y(2);
  ops->gated_mlp(1, x.data(), mlp, y.data());
  for (int o = 0; o < 2; ++o) {
    double sum = 0;
    for (int h = 0; h < 3; ++h) {
      const double g = gate[h * 2] * x[0] + gate[h * 2 + 1] * x[1];
      const double u = up[h * 2] * x[0] + up[h * 2 + 1] * x[1];
      sum += down[o * 3 + h] * g / (1 + std::exp(-g)) * u;
    }
    EXPECT_NEAR(y[o], sum, 1e-5);
  }
}

}  // namespace
}  // namespace espalier::reference
