// The CPU backend against the reference backend, operator by operator, with every instruction set
// that this machine can run.
#include "compute/cpu/cpu_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <tuple>

#include "compute/cpu/targets.h"
#include "compute/reference/reference.h"
#include "hwy/highway.h"
#include "pack/exl3.h"

namespace espalier::cpu {
namespace {

using compute::Activation;
using compute::Attention;
using compute::KvType;
using compute::KvView;
using compute::Rope;
using compute::RopePairs;
using compute::Row;

class CpuOpsTest : public testing::TestWithParam<std::int64_t> {
 protected:
  CpuOpsTest() { hwy::SetSupportedTargetsForTest(GetParam()); }
  ~CpuOpsTest() override { hwy::SetSupportedTargetsForTest(0); }

  std::vector<float> numbers(std::size_t count, float largest = 1) {
    std::vector<float> values(count);
    for (float& value : values) {
      value = std::uniform_real_distribution<float>(-largest, largest)(random_);
    }
    return values;
  }

  // gate_project has the bits of its parts.
  void expect_gate_project(const compute::Linear& linear) {
    for (const Activations activations : {Activations::kCoded, Activations::kFloat32}) {
      const auto one = make_ops(1, activations);
      const auto three = make_ops(3, activations);
      for (const std::size_t rows : {1, 3, 11}) {
        const std::vector<float> gates = numbers(rows * linear.weight.cols, 5);
        const std::vector<float> ups = numbers(gates.size());
        for (const Activation activation : {Activation::kSilu, Activation::kClampedSwiglu}) {
          std::vector<float> expected(rows * linear.weight.rows);
          std::vector<float> x = gates;
          one->Ops::gate_project(rows, x.data(), ups.data(), activation, linear, expected.data());
          for (compute::Ops* ops : {one.get(), three.get()}) {
            std::vector<float> y(expected.size());
            x = gates;
            ops->gate_project(rows, x.data(), ups.data(), activation, linear, y.data());
            EXPECT_EQ(y, expected) << linear.weight.format->name;
          }
        }
      }
    }
  }

  std::mt19937 random_{7};
  std::unique_ptr<compute::Ops> reference_ = reference::make_ops();
  std::unique_ptr<compute::Ops> one_ = make_ops(1);
  std::unique_ptr<compute::Ops> three_ = make_ops(3);
};

void expect_near(const std::vector<float>& found, const std::vector<float>& expected,
                 float tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << i;
  }
}

TEST_P(CpuOpsTest, RmsNorm) {
  for (const std::size_t width : {1, 7, 64, 576, 1001}) {
    for (const std::size_t rows : {1, 3, 40}) {
      const std::vector<float> x = numbers(rows * width, 100);
      const std::vector<float> weight = numbers(width);
      std::vector<float> expected(x.size());
      std::vector<float> y(x.size());
      std::vector<float> in_place = x;
      reference_->rms_norm(rows, x.data(), weight, 1e-5f, expected.data());
      one_->rms_norm(rows, x.data(), weight, 1e-5f, y.data());
      three_->rms_norm(rows, in_place.data(), weight, 1e-5f, in_place.data());
      expect_near(y, expected, 1e-6f);
      EXPECT_EQ(in_place, y);
    }
  }
}

TEST_P(CpuOpsTest, Rope) {
  for (const RopePairs kind : {RopePairs::kHalves, RopePairs::kInterleaved}) {
    for (const std::size_t pairs : {1, 5, 16, 32, 45}) {
      const std::size_t head_dim = 2 * pairs + 6;
      Rope rope = {.pairs = kind, .magnitude = 1.25};
      for (std::size_t i = 0; i < pairs; ++i) rope.frequencies.push_back(std::pow(0.7, i));
      // The second list has other positions, the third other rows: no angle may be left over.
      for (const std::int32_t first : {0, 4000, 4001}) {
        std::vector<Row> rows(first == 4001 ? 3 : 90);
        for (std::size_t r = 0; r < rows.size(); ++r) {
          rows[r].position = first + static_cast<std::int32_t>(r);
        }
        const std::vector<float> x = numbers(rows.size() * 5 * head_dim);
        std::vector<float> expected = x;
        std::vector<float> y = x;
        std::vector<float> y3 = x;
        reference_->rope(rows, 5, head_dim, rope, expected.data());
        one_->rope(rows, 5, head_dim, rope, y.data());
        three_->rope(rows, 5, head_dim, rope, y3.data());
        expect_near(y, expected, 1e-6f);
        EXPECT_EQ(y, y3);
      }
    }
  }
}

TEST_P(CpuOpsTest, GateAndAdd) {
  for (const std::size_t count : {1, 15, 64, 1000, 40001}) {
    std::vector<float> gate = numbers(count, 30);
    gate[0] = 200;
    gate[count / 2] = -200;
    gate[count - 1] = -88.5f;
    std::vector<float> up = numbers(count);
    up[count / 3] = 9;
    up[count / 4] = -9;
    std::vector<float> expected(count);
    std::vector<float> y(count);
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh,
                                        Activation::kSigmoid, Activation::kClampedSwiglu}) {
      std::vector<float> in_place = gate;
      reference_->gate(count, gate.data(), up.data(), activation, expected.data());
      one_->gate(count, gate.data(), up.data(), activation, y.data());
      three_->gate(count, in_place.data(), up.data(), activation, in_place.data());
      expect_near(y, expected, 2e-6f);
      EXPECT_EQ(in_place, y);
    }

    std::vector<float> sum = up;
    std::vector<float> sum3 = up;
    reference_->add(count, gate.data(), expected.data());
    one_->add(count, gate.data(), sum.data());
    three_->add(count, gate.data(), sum3.data());
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], up[i] + gate[i]);
    EXPECT_EQ(sum3, sum);
  }
}

TEST_P(CpuOpsTest, ScaleAndSoftcap) {
  for (const std::size_t count : {1, 15, 64, 40001}) {
    const std::vector<float> x = numbers(count, 300);
    std::vector<float> expected = x;
    std::vector<float> y = x;
    std::vector<float> y3 = x;
    reference_->softcap(count, 30, expected.data());
    one_->softcap(count, 30, y.data());
    three_->softcap(count, 30, y3.data());
    expect_near(y, expected, 1e-6f);
    EXPECT_EQ(y3, y);
    three_->scale(count, 25.3f, y3.data());
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(y3[i], y[i] * 25.3f);
  }
}

TEST_P(CpuOpsTest, EmbedAndProjectWithBias) {
  const std::vector<float> table = numbers(50 * 64);
  const pack::Matrix w =
      *pack::block_matrix(*pack::find_format("F32"), 50, 64, std::as_bytes(std::span(table)));
  const std::vector<Row> rows = {{.token = 49}, {.token = 0}, {.token = 7}};
  std::vector<float> x(3 * 64);
  three_->embed(rows, w, x.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(x[i], table[static_cast<std::size_t>(rows[i / 64].token) * 64 + i % 64]);
  }
  const compute::Linear linear = {.weight = w, .bias = numbers(50)};
  std::vector<float> expected(3 * 50);
  std::vector<float> y(3 * 50);
  reference_->project(3, x.data(), linear, expected.data());
  three_->project(3, x.data(), linear, y.data());
  expect_near(y, expected, 1e-5f);
}

// Fused operators have the bits of their parts, which are compared with the reference above.
TEST_P(CpuOpsTest, AddRmsNorm) {
  for (const std::size_t width : {1, 7, 64, 576, 1001}) {
    for (const std::size_t rows : {1, 3, 40}) {
      const std::vector<float> x = numbers(rows * width, 100);
      const std::vector<float> y = numbers(rows * width, 10);
      const std::vector<float> weight = numbers(width);
      for (const std::vector<float>& post : {std::vector<float>(), numbers(width)}) {
        std::vector<float> sum = x;
        std::vector<float> added = y;
        std::vector<float> normed(x.size());
        one_->Ops::add_rms_norm(rows, added.data(), post, weight, 1e-5f, sum.data(), normed.data());
        for (compute::Ops* ops : {one_.get(), three_.get()}) {
          std::vector<float> fused_sum = x;
          std::vector<float> fused_normed(x.size());
          added = y;
          ops->add_rms_norm(rows, added.data(), post, weight, 1e-5f, fused_sum.data(),
                            fused_normed.data());
          EXPECT_EQ(fused_sum, sum) << width;
          EXPECT_EQ(fused_normed, normed) << width;
        }
      }
    }
  }
}

// With what a projection takes: codes (of one part of a row or several), floats, EXL3's runs.
TEST_P(CpuOpsTest, GateProject) {
  for (const std::size_t inputs : {1056, 9216}) {
    const pack::Format& format = *pack::find_format("Q8_0");
    const auto weight = format.encode(format, numbers(20 * inputs), 20, inputs);
    ASSERT_TRUE(weight) << weight.error().message;
    expect_gate_project({.weight = weight->view, .bias = numbers(20)});
  }
  const std::vector<float> floats = numbers(20 * 77);
  expect_gate_project({.weight = *pack::block_matrix(*pack::find_format("F32"), 20, 77,
                                                     std::as_bytes(std::span(floats)))});
  const pack::Format& exl3 = *pack::find_format("EXL3-MUL1-3");
  std::vector<std::byte> trellis(8 * 16 * exl3.block_bytes);
  for (std::byte& byte : trellis) byte = static_cast<std::byte>(random_());
  const std::vector<std::byte> suh(2 * 256, std::byte{0x38});  // half a one
  const std::vector<std::byte> svh(2 * 128, std::byte{0x38});
  const auto weight = pack::exl3_matrix(exl3, 100, 200, trellis, suh, svh);
  ASSERT_TRUE(weight) << weight.error().message;
  expect_gate_project({.weight = *weight});
}

struct AttentionCase {
  std::size_t heads, kv_heads, head_dim, window;
  KvType type;
  float softcap = 0;
  std::vector<float> sinks = {};
};

// Two sequences of `capacity` positions, filled through store_kv.
class Cache {
 public:
  Cache(const AttentionCase& c, std::size_t capacity)
      : keys_(2 * c.kv_heads * capacity * compute::kv_row_bytes(c.type, c.head_dim)),
        values_(keys_.size()) {
    view = {.type = c.type,
            .keys = keys_.data(),
            .values = values_.data(),
            .kv_heads = c.kv_heads,
            .head_dim = c.head_dim,
            .capacity = capacity};
  }
  KvView view;
  [[nodiscard]] const std::vector<std::byte>& keys() const { return keys_; }
  [[nodiscard]] const std::vector<std::byte>& values() const { return values_; }

 private:
  std::vector<std::byte> keys_, values_;
};

class CpuAttentionTest : public CpuOpsTest {
 protected:
  static constexpr std::size_t kPositions = 1100;

  void check(const AttentionCase& c) {
    Cache cache(c, kPositions);
    Cache reference_cache(c, kPositions);
    std::vector<Row> all;
    for (std::int32_t s = 0; s < 2; ++s) {
      for (std::size_t p = 0; p < kPositions; ++p) {
        all.push_back({.sequence = s, .position = static_cast<std::int32_t>(p)});
      }
    }
    const std::vector<float> keys = numbers(all.size() * c.kv_heads * c.head_dim, 2);
    const std::vector<float> values = numbers(keys.size());
    reference_->store_kv(all, keys.data(), values.data(), reference_cache.view);
    three_->store_kv(all, keys.data(), values.data(), cache.view);
    ASSERT_EQ(cache.keys(), reference_cache.keys());

    const Attention attention = {.heads = c.heads,
                                 .kv_heads = c.kv_heads,
                                 .head_dim = c.head_dim,
                                 .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                 .window = c.window,
                                 .softcap = c.softcap,
                                 .sinks = c.sinks};
    // A prefill of one sequence in the middle of which the other decodes.
    std::vector<Row> rows;
    for (std::int32_t p = 0; p < 70; ++p) rows.push_back({.sequence = 0, .position = p});
    rows.push_back({.sequence = 1, .position = 1099});
    for (std::int32_t p = 500; p < 530; ++p) rows.push_back({.sequence = 0, .position = p});
    rows.push_back({.sequence = 1, .position = 1024});
    const std::size_t width = c.heads * c.head_dim;
    const std::vector<float> queries = numbers(rows.size() * width, 3);
    std::vector<float> expected(queries.size());
    std::vector<float> y(queries.size());
    std::vector<float> y3(queries.size());
    reference_->attention(rows, queries.data(), cache.view, attention, expected.data());
    one_->attention(rows, queries.data(), cache.view, attention, y.data());
    three_->attention(rows, queries.data(), cache.view, attention, y3.data());
    expect_near(y, expected, 1e-5f);
    EXPECT_EQ(y, y3);

    // Each row alone, as in decode.
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::vector<float> alone(width);
      one_->attention({&rows[r], 1}, queries.data() + r * width, cache.view, attention,
                      alone.data());
      ASSERT_EQ(std::memcmp(alone.data(), y.data() + r * width, width * sizeof(float)), 0) << r;
    }
  }
};

TEST_P(CpuAttentionTest, GroupsOfThree) { check({9, 3, 64, 0, KvType::kF16}); }
TEST_P(CpuAttentionTest, FloatCacheAndOddSizes) { check({4, 4, 7, 0, KvType::kF32}); }
TEST_P(CpuAttentionTest, HalfCacheAndOddSizes) { check({2, 1, 37, 0, KvType::kF16}); }
TEST_P(CpuAttentionTest, Window) { check({4, 1, 32, 100, KvType::kF16}); }
TEST_P(CpuAttentionTest, WindowOfOne) { check({2, 2, 16, 1, KvType::kF32}); }
TEST_P(CpuAttentionTest, Softcap) { check({4, 2, 32, 100, KvType::kF16, 2.5f}); }
TEST_P(CpuAttentionTest, Sinks) {
  check({4, 2, 32, 0, KvType::kF16, 0, {-40, 1.5f, 8, 60}});
  check({4, 2, 32, 100, KvType::kF32, 5, {-200, 0, 2, 200}});
}
TEST_P(CpuAttentionTest, BfloatCache) {
  check({4, 2, 64, 0, KvType::kBF16});
  check({2, 1, 37, 100, KvType::kBF16});
}
TEST_P(CpuAttentionTest, CacheOfBytes) {
  check({6, 2, 64, 0, KvType::kQ8});
  check({2, 1, 37, 100, KvType::kQ8});
  check({2, 2, 80, 0, KvType::kQ8, 2.5f});
}
TEST_P(CpuAttentionTest, CacheOfFourBits) {
  check({6, 2, 64, 0, KvType::kQ4});
  check({2, 1, 37, 100, KvType::kQ4});
  check({2, 2, 96, 70, KvType::kQ4, 2.5f, {-1, 3}});
  check({8, 1, 256, 0, KvType::kQ4});
}

// Keys and values among which are some that no type holds well.
TEST_P(CpuAttentionTest, StoredBytesAreThoseOfTheDefinition) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8, KvType::kQ4}) {
    for (const std::size_t dim : {1, 7, 31, 32, 33, 64, 80, 96, 128, 256, 320, 512}) {
      for (const float special : {0.0f, 1e-3f, 1e-30f, 1e-41f, 3e5f, 6e7f, INFINITY, NAN}) {
        std::vector<float> x = numbers(dim, 2);
        x[dim / 2] = special;
        if (special == 0) std::fill(x.begin(), x.end(), -0.0f);
        if (special == 1e-41f || special == 1e-30f) std::fill(x.begin(), x.end(), special);
        Cache cache({1, 1, dim, 0, type}, 1);
        Cache reference_cache({1, 1, dim, 0, type}, 1);
        const std::vector<Row> row(1);
        one_->store_kv(row, x.data(), x.data(), cache.view);
        reference_->store_kv(row, x.data(), x.data(), reference_cache.view);
        ASSERT_EQ(cache.keys(), reference_cache.keys()) << dim << ' ' << special;
      }
    }
  }
}

// Heads made ready in one go have the bits of the small operators, and so has the cache.
TEST_P(CpuAttentionTest, NormRopeStore) {
  const std::size_t dim = 70;
  const std::size_t query_heads = 6;
  const std::size_t kv_heads = 2;
  const std::vector<Row> rows = {{.sequence = 0, .position = 5},
                                 {.sequence = 1, .position = 0},
                                 {.sequence = 0, .position = 6}};
  Rope rope = {.pairs = RopePairs::kHalves, .frequencies = {}};
  for (std::size_t i = 0; i < 33; ++i) rope.frequencies.push_back(std::pow(0.7, i));
  const std::vector<float> norm = numbers(dim);
  const std::vector<float> q = numbers(rows.size() * query_heads * dim);
  const std::vector<float> k = numbers(rows.size() * kv_heads * dim);
  const std::vector<float> v = numbers(k.size());
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8}) {
    for (const bool normed : {true, false}) {
      for (const bool turned : {true, false}) {
        const auto run = [&](compute::Ops& ops, auto norm_rope_store) {
          Cache cache({query_heads, kv_heads, dim, 0, type}, 8);
          std::vector<float> queries = q;
          std::vector<float> keys = k;
          std::vector<float> values = v;
          const compute::Heads heads = {queries.data(), keys.data(), values.data(), query_heads};
          compute::HeadNorms norms = {.queries = {}, .keys = {}, .epsilon = 1e-6f};
          if (normed) norms.queries = norms.keys = norm;
          norm_rope_store(ops, heads, norms, turned ? &rope : nullptr, cache.view);
          return std::tuple(queries, cache.keys(), cache.values());
        };
        const auto parts = [&](compute::Ops& ops, const auto&... of) {
          ops.Ops::norm_rope_store(rows, of...);
        };
        const auto fused = [&](compute::Ops& ops, const auto&... of) {
          ops.norm_rope_store(rows, of...);
        };
        const auto expected = run(*one_, parts);
        EXPECT_EQ(run(*one_, fused), expected);
        EXPECT_EQ(run(*three_, fused), expected);
      }
    }
  }
}

TEST_P(CpuAttentionTest, WideHeads) { check({2, 1, 256, 512, KvType::kF16}); }

INSTANTIATE_TEST_SUITE_P(Targets, CpuOpsTest,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });
INSTANTIATE_TEST_SUITE_P(Targets, CpuAttentionTest,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

}  // namespace
}  // namespace espalier::cpu
