// Gated delta nets: the reference against their equations in double, the CPU backend against the
// reference with every instruction set, and both against themselves in other batches.
#include <gtest/gtest.h>

#include <algorithm>
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
           std::size_t value_dim, KeyHeadOrder order, std::size_t row_count = kRows)
      : rows(sequence_rows(row_count)) {
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
    queries_keys = numbers(row_count * 2 * key_heads * key_dim);
    reference::make_ops()->l2_norm(row_count * 2 * key_heads, key_dim, queries_keys.data(), 1e-6f,
                                   queries_keys.data());
    values = numbers(row_count * value_heads * value_dim);
    b = numbers(row_count * value_heads);
    a = numbers(row_count * value_heads);
  }

  [[nodiscard]] float* key(std::size_t row, std::size_t head) {
    return queries_keys.data() + ((row * 2 + 1) * rule.key_heads + head) * rule.key_dim;
  }

  // Calls step(rows, queries_keys, values, b, a, y) for `chunk` rows at a time.
  template <typename Step>
  std::vector<float> in_chunks(std::size_t chunk, const Step& step) const {
    std::vector<float> y(values.size());
    for (std::size_t r = 0; r < rows.size(); r += chunk) {
      step(std::span(rows).subspan(r, std::min(chunk, rows.size() - r)),
           queries_keys.data() + r * 2 * rule.key_heads * rule.key_dim,
           values.data() + r * rule.value_heads * rule.value_dim, b.data() + r * rule.value_heads,
           a.data() + r * rule.value_heads, y.data() + r * rule.value_heads * rule.value_dim);
    }
    return y;
  }

  std::vector<float> run(Ops& ops, std::size_t chunk, const RecurrentView& state) const {
    return in_chunks(chunk, [&](std::span<const Row> part, const float* qk, const float* v,
                                const float* write, const float* step, float* y) {
      ops.delta_rule(part, qk, v, write, step, rule, state, y);
    });
  }

  std::vector<float> run(Ops& ops, std::size_t chunk) const {
    const State state(0, rule.memory_size());
    return run(ops, chunk, state.view);
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
      for (std::size_t t = 0; t < rows.size(); ++t) {
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
  std::vector<Row> rows;
  std::vector<float> queries_keys, values, b, a;
};

// What makes chunks hard: rows that forget all, that forget nothing, that repeat a key, whose key
// is zero, and all of these in turn.
std::vector<RuleCase> hard_rules(std::size_t key_dim, std::size_t value_dim, std::size_t rows) {
  std::vector<RuleCase> cases(5, {2, 4, key_dim, value_dim, KeyHeadOrder::kGrouped, rows});
  std::ranges::fill(cases[0].rule.rate, -1e4f);
  std::ranges::fill(cases[1].rule.rate, 0.0f);
  for (std::size_t r = 0; r < rows; ++r) {
    for (const std::size_t head : {0, 1}) {
      std::copy_n(cases[2].key(0, head), key_dim, cases[2].key(r, head));
      std::fill_n(cases[3].key(r, head), key_dim, 0.0f);
      if (r % 3 == 0) std::copy_n(cases[4].key(0, head), key_dim, cases[4].key(r, head));
      if (r % 7 == 0) std::fill_n(cases[4].key(r, head), key_dim, 0.0f);
    }
    if (r % 5 == 0) std::fill_n(cases[4].a.data() + r * 4, 4, 300.0f);
    if (r % 5 > 2) std::fill_n(cases[4].a.data() + r * 4, 4, -300.0f);
    std::fill_n(cases[2].b.data() + r * 4, 4, 30.0f);  // writes in full
  }
  return cases;
}

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

TEST(ReferenceDeltaRule, ChunkedFormEqualsTheRecurrence) {
  const auto ops = reference::make_ops();
  std::vector<RuleCase> cases = hard_rules(10, 20, 70);
  cases.emplace_back(2, 6, 24, 18, KeyHeadOrder::kTiled, 70);
  for (const RuleCase& c : cases) {
    const State recurrent(0, c.rule.memory_size());
    const auto expected = c.run(*ops, c.rows.size(), recurrent.view);
    for (const std::size_t chunk : {1, 2, 19, 64, 100}) {
      // Cut once more, so that a state is carried over.
      for (const std::size_t batch : {33, 70}) {
        const State state(0, c.rule.memory_size());
        const auto y =
            c.in_chunks(batch, [&](std::span<const Row> part, const float* qk, const float* v,
                                   const float* b, const float* a, float* to) {
              reference::chunked_delta_rule(part, chunk, qk, v, b, a, c.rule, state.view, to);
            });
        expect_near(y, expected, 2e-6f);
        for (std::size_t i = 0; i < c.rule.matrices_size(); ++i) {
          const float element = recurrent.view.memory[i];
          if (element == 77) continue;  // of the other sequence
          ASSERT_NEAR(state.view.memory[i], element, 2e-6f) << i;
        }
      }
    }
  }
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

TEST_P(CpuDeltaNetTest, ChunksOfTheDeltaRule) {
  for (const std::size_t rows : {1, 2, 15, 16, 17, 31, 32, 33, 70}) {
    for (const RuleCase& c : hard_rules(27, 85, rows)) {
      const auto y = c.run(*one_, rows);
      expect_near(y, c.run(*reference_, rows), 1e-5f);
      for (const std::size_t chunk : {1, 7, 16}) EXPECT_EQ(c.run(*three_, chunk), y);
    }
  }
}

// At the end of a chunk the matrices are those of the recurrence.
TEST_P(CpuDeltaNetTest, DeltaRuleContinuesFromAMatrix) {
  for (RuleCase& c : hard_rules(19, 40, 32)) {
    for (Row& row : c.rows) row.position += 48;
    const State found(0, c.rule.memory_size());
    const State expected(0, c.rule.memory_size());
    const auto memory = Numbers()(c.rule.matrices_size());
    std::ranges::copy(memory, found.view.memory);
    std::ranges::copy(memory, expected.view.memory);
    expect_near(c.run(*three_, 9, found.view), c.run(*reference_, 9, expected.view), 1e-5f);
    const std::size_t tile = c.rule.key_dim * DeltaRule::kTile;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const std::size_t column =
          i / tile % c.rule.tiles() * DeltaRule::kTile + i % DeltaRule::kTile;
      if (column >= c.rule.value_dim) continue;
      const float element = expected.view.memory[i];
      ASSERT_NEAR(found.view.memory[i], element, 1e-5f * (1 + std::abs(element))) << i;
    }
  }
}

// Several users at once, each at another place of its chunk.
TEST_P(CpuDeltaNetTest, SequencesSideBySide) {
  const RuleCase c(2, 4, 24, 40, KeyHeadOrder::kTiled, 40);
  const auto alone = c.run(*one_, 40);
  const std::size_t width = c.rule.value_heads * c.rule.value_dim;
  const std::size_t keys = 2 * c.rule.key_heads * c.rule.key_dim;
  const State state(0, c.rule.memory_size());
  const auto step = [&](std::span<const Row> rows) {  // which tell what their inputs are
    std::vector<float> qk, v, b, a;
    const auto append = [](std::vector<float>& to, const std::vector<float>& from, std::size_t row,
                           std::size_t size) {
      to.insert(to.end(), from.begin() + row * size, from.begin() + (row + 1) * size);
    };
    for (const Row& row : rows) {
      append(qk, c.queries_keys, row.position, keys);
      append(v, c.values, row.position, width);
      append(b, c.b, row.position, c.rule.value_heads);
      append(a, c.a, row.position, c.rule.value_heads);
    }
    std::vector<float> y(v.size());
    three_->delta_rule(rows, qk.data(), v.data(), b.data(), a.data(), c.rule, state.view, y.data());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t i = 0; i < width; ++i) {
        ASSERT_EQ(y[r * width + i], alone[rows[r].position * width + i]);
      }
    }
  };
  step(std::vector<Row>(c.rows.begin(), c.rows.begin() + 11));
  for (std::int32_t r = 0; r < 29; ++r) {
    step(std::vector<Row>{{.sequence = 0, .position = r + 11}, {.sequence = 1, .position = r}});
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
