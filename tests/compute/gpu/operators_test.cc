// The operators around products on a GPU, emulated or (cuda/kernels_test.cc) real, against the
// reference backend, at sizes that fill no block.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/half.h"
#include "compute/gpu/kernels/entries.h"
#include "compute/gpu/launch.h"
#include "compute/reference/reference.h"
#include "compute/routing.h"

namespace espalier::gpu::ESPALIER_DIALECT {
namespace {

using testing::ElementsAre;

std::mt19937 random_engine(3);

std::vector<float> normals(std::size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random_engine);
  return values;
}

std::uint32_t narrow(std::size_t value) { return static_cast<std::uint32_t>(value); }

// What a kernel left in y, all of which it has to have written.
std::vector<float> floats(const Buffer& y) {
  EXPECT_EQ(y.first_unwritten(), std::nullopt);
  const auto values = y.values<float>();
  return {values.begin(), values.end()};
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected,
                 double relative) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], relative * (1 + std::abs(expected[i]))) << i;
  }
}

#define ASSERT_LAUNCHED(...)                           \
  do {                                                 \
    const Status launched = __VA_ARGS__;               \
    ASSERT_TRUE(launched) << launched.error().message; \
  } while (false)

class GpuOperators : public testing::Test {
 protected:
  std::unique_ptr<compute::Ops> reference_ = reference::make_ops();
};

TEST_F(GpuOperators, RmsNorm) {
  for (const std::size_t width : {1, 31, 256, 700}) {
    const auto x = normals(3 * width);
    const auto weight = normals(width);
    std::vector<float> expected(x.size());
    reference_->rms_norm(3, x.data(), weight, 1e-5f, expected.data());
    Buffer x_buffer("x", x);
    Buffer weight_buffer("weight", weight);
    Buffer y("y", x.size() * sizeof(float));
    const Grid grid = *row_grid("rms_norm", 3, width);
    const RmsNormArguments args = {x_buffer.at<const float>(), weight_buffer.at<const float>(),
                                   y.at<float>(), narrow(width), 1e-5f};
    ASSERT_LAUNCHED(launch::rms_norm(grid, args));
    expect_near(floats(y), expected, 2e-6);

    RmsNormArguments in_place = args;
    in_place.y = x_buffer.at<float>();
    ASSERT_LAUNCHED(launch::rms_norm(grid, in_place));
    EXPECT_EQ(floats(x_buffer), floats(y));
  }
}

TEST_F(GpuOperators, RopeAtFarPositions) {
  for (const auto pairs : {compute::RopePairs::kHalves, compute::RopePairs::kInterleaved}) {
    const bool halves = pairs == compute::RopePairs::kHalves;
    compute::Rope rope = {.pairs = pairs, .frequencies = {}, .magnitude = 1.25};
    for (int i = 0; i < 24; ++i) rope.frequencies.push_back(std::pow(10000.0, -i / 24.0));
    const std::size_t heads = 7;
    const std::size_t dim = 50;  // the last two do not turn
    const std::vector<std::int32_t> positions = {0, 1, 1000003};
    std::vector<compute::Row> rows;
    for (const std::int32_t position : positions) rows.push_back({.position = position});
    std::vector<float> x = normals(3 * heads * dim);
    Buffer x_buffer("x", x);
    reference_->rope(rows, heads, dim, rope, x.data());
    std::vector<std::uint64_t> turns;
    for (const double frequency : rope.frequencies) turns.push_back(rope_turns(frequency));
    Buffer positions_buffer("positions", positions);
    Buffer turns_buffer("turns", turns);
    ASSERT_LAUNCHED(launch::rope(*rope_grid(3, heads, dim, rope),
                                 {.x = x_buffer.at<float>(),
                                  .positions = positions_buffer.at<const std::int32_t>(),
                                  .turns = turns_buffer.at<const std::uint64_t>(),
                                  .heads = narrow(heads),
                                  .head_dim = narrow(dim),
                                  .pairs = 24,
                                  .step = halves ? 1u : 2u,
                                  .apart = halves ? 24u : 1u,
                                  .magnitude = 1.25f}));
    expect_near(floats(x_buffer), x, 1e-6);
  }
}

TEST_F(GpuOperators, GatesOfEveryActivation) {
  const std::size_t count = 300;
  auto gate = normals(count);
  auto up = normals(count);
  for (std::size_t i = 0; i < count; ++i) gate[i] *= 4;  // far enough for the clamps
  for (std::size_t i = 0; i < count; ++i) up[i] *= 4;
  gate[0] = -200;  // e^200 is infinite as a float
  gate[1] = 200;
  using Launch = Status (*)(const Grid&, const GateArguments&);
  const std::pair<compute::Activation, Launch> kernels[] = {
      {compute::Activation::kSilu, launch::gate_silu},
      {compute::Activation::kGeluTanh, launch::gate_gelu_tanh},
      {compute::Activation::kSigmoid, launch::gate_sigmoid},
      {compute::Activation::kClampedSwiglu, launch::gate_clamped_swiglu}};
  for (const auto& [activation, kernel] : kernels) {
    std::vector<float> expected(count);
    reference_->gate(count, gate.data(), up.data(), activation, expected.data());
    Buffer gate_buffer("gate", gate);
    Buffer up_buffer("up", up);
    Buffer y("y", count * sizeof(float));
    ASSERT_LAUNCHED(kernel(*element_grid("gate", count),
                           {gate_buffer.at<const float>(), up_buffer.at<const float>(),
                            y.at<float>(), narrow(count)}));
    expect_near(floats(y), expected, 2e-6);
  }
}

TEST_F(GpuOperators, AddsScalesAndCaps) {
  const std::size_t count = 257;
  const auto x = normals(count);
  const auto y = normals(count);
  const Grid grid = *element_grid("add", count);
  Buffer x_buffer("x", x);
  Buffer y_buffer("y", y);
  const UnaryArguments args = {x_buffer.at<const float>(), y_buffer.at<float>(), narrow(count), 3};

  std::vector<float> expected = y;
  reference_->add(count, x.data(), expected.data());
  ASSERT_LAUNCHED(launch::add(grid, args));
  EXPECT_EQ(floats(y_buffer), expected);

  expected = x;
  reference_->scale(count, 3, expected.data());
  ASSERT_LAUNCHED(launch::scale(grid, args));
  EXPECT_EQ(floats(y_buffer), expected);

  expected = x;
  reference_->softcap(count, 3, expected.data());
  ASSERT_LAUNCHED(launch::softcap(grid, args));
  expect_near(floats(y_buffer), expected, 1e-6);
}

struct TopK {
  std::vector<std::uint32_t> places;
  std::vector<float> values;
};
TopK top_k_of(const std::vector<float>& x, std::size_t rows, std::size_t count) {
  const std::size_t width = x.size() / rows;
  Buffer x_buffer("x", x);
  Buffer places("places", rows * count * sizeof(std::uint32_t));
  Buffer values("values", rows * count * sizeof(float));
  const Status status = launch::top_k(*top_k_grid(rows, width, count),
                                      {x_buffer.at<const float>(), places.at<std::uint32_t>(),
                                       values.at<float>(), narrow(width), narrow(count)});
  EXPECT_TRUE(status) << status.error().message;
  const auto found = places.values<std::uint32_t>();
  return {{found.begin(), found.end()}, floats(values)};
}

TEST_F(GpuOperators, TopKIsSortedWithTheLowerPlaceFirstAmongEquals) {
  const std::size_t width = 777;
  std::vector<float> x = normals(2 * width);
  for (float& value : x) value = std::round(value * 8);  // with many equals
  const TopK found = top_k_of(x, 2, 40);
  for (std::size_t r = 0; r < 2; ++r) {
    const float* row = x.data() + r * width;
    std::vector<std::uint32_t> order(width);
    for (std::uint32_t i = 0; i < width; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [row](std::uint32_t a, std::uint32_t b) { return row[a] > row[b]; });
    for (std::size_t k = 0; k < 40; ++k) {
      EXPECT_EQ(found.places[r * 40 + k], order[k]);
      EXPECT_EQ(found.values[r * 40 + k], row[order[k]]);
    }
  }
}

TEST_F(GpuOperators, TopKChoosesNoNaN) {
  const TopK found = top_k_of({NAN, -INFINITY, NAN, 2}, 1, 4);
  EXPECT_THAT(found.places, ElementsAre(3, 1, kNowhere, kNowhere));
}

TEST_F(GpuOperators, Softmax) {
  for (const std::size_t width : {1, 33, 1000}) {
    auto x = normals(2 * width);
    x[0] = 300;  // e^300 is infinite as a float
    Buffer x_buffer("x", x);
    Buffer y("y", x.size() * sizeof(float));
    ASSERT_LAUNCHED(
        launch::softmax(*row_grid("softmax", 2, width),
                        {x_buffer.at<const float>(), y.at<float>(), narrow(width), 1 / 0.7f}));
    std::vector<float> expected;
    for (std::size_t r = 0; r < 2; ++r) {
      const auto row = std::span(x).subspan(r * width, width);
      const double most = *std::max_element(row.begin(), row.end());
      double sum = 0;
      for (const float value : row) sum += std::exp((value - most) / 0.7);
      for (const float value : row) {
        expected.push_back(static_cast<float>(std::exp((value - most) / 0.7) / sum));
      }
    }
    expect_near(floats(y), expected, 1e-6);
  }
}

TEST_F(GpuOperators, RoutesAsTheDefinition) {
  for (const std::size_t experts : {5, 32, 200}) {
    for (const bool sigmoid : {false, true}) {
      for (const bool biased : {false, true}) {
        const std::size_t rows = 3;
        const std::size_t top_k = 4;
        compute::Router router = {
            .linear = {},
            .top_k = top_k,
            .scores = sigmoid ? compute::ExpertScores::kSigmoid : compute::ExpertScores::kSoftmax,
            .selection_bias = biased ? normals(experts) : std::vector<float>(),
            .renormalize = biased,
            .scale = 2.5f};
        const auto outputs = normals(rows * experts);
        Buffer outputs_buffer("outputs", outputs);
        Buffer bias("selection_bias", router.selection_bias);
        Buffer chosen("chosen", rows * top_k * sizeof(std::uint32_t));
        Buffer weights("weights", rows * top_k * sizeof(float));
        const RouteArguments args = {.outputs = outputs_buffer.at<const float>(),
                                     .selection_bias = biased ? bias.at<const float>() : nullptr,
                                     .chosen = chosen.at<std::uint32_t>(),
                                     .weights = weights.at<float>(),
                                     .experts = narrow(experts),
                                     .top_k = narrow(top_k),
                                     .renormalize = biased ? 1u : 0u,
                                     .scale = 2.5f};
        const Grid grid = *route_grid(rows, experts, top_k);
        ASSERT_LAUNCHED(sigmoid ? launch::route_sigmoid(grid, args)
                                : launch::route_softmax(grid, args));
        for (std::size_t r = 0; r < rows; ++r) {
          std::vector<compute::ExpertChoice> choices(top_k);
          compute::route(router, std::span(outputs).subspan(r * experts, experts), choices);
          for (std::size_t k = 0; k < top_k; ++k) {
            EXPECT_EQ(chosen.values<std::uint32_t>()[r * top_k + k], choices[k].expert);
            EXPECT_NEAR(weights.values<float>()[r * top_k + k], choices[k].weight, 2e-6);
          }
        }
      }
    }
  }
}

// --- Attention
// ------------------------------------------------------------------------------------

struct AttentionCase {
  std::size_t kv_heads = 1;
  std::size_t group = 1;
  std::size_t head_dim = 64;
  std::vector<std::int32_t> positions;  // of a row each, in sequences of their own
  std::size_t window = 0;
  bool sinks = false;
  float softcap = 0;
  compute::KvType type = compute::KvType::kF32;
};

class GpuAttention : public GpuOperators {
 protected:
  static constexpr std::size_t kCapacity = 600;

  // The cache of random keys and values.
  static std::vector<std::byte> random_cache(compute::KvType type, std::size_t count) {
    std::vector<std::byte> bytes(compute::kv_row_bytes(type, count));
    const auto values = normals(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t half = espalier::float_to_half(values[i]);
      if (type == compute::KvType::kF32) {
        std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      } else {
        std::memcpy(bytes.data() + 2 * i, &half, 2);
      }
    }
    return bytes;
  }

  template <typename Kv>
  static Status run_chunks(const AttentionShape& shape, const AttentionArguments<Kv>& args) {
    using Launch = Status (*)(const Grid&, const AttentionArguments<Kv>&);
    std::pair<std::string_view, Launch> kernels[4];
    if constexpr (std::is_same_v<Kv, float>) {
      kernels[0] = {"attention_chunk_f32_64", launch::attention_chunk_f32_64};
      kernels[1] = {"attention_chunk_f32_128", launch::attention_chunk_f32_128};
      kernels[2] = {"attention_chunk_f32_256", launch::attention_chunk_f32_256};
      kernels[3] = {"attention_chunk_f32_512", launch::attention_chunk_f32_512};
    } else {
      kernels[0] = {"attention_chunk_f16_64", launch::attention_chunk_f16_64};
      kernels[1] = {"attention_chunk_f16_128", launch::attention_chunk_f16_128};
      kernels[2] = {"attention_chunk_f16_256", launch::attention_chunk_f16_256};
      kernels[3] = {"attention_chunk_f16_512", launch::attention_chunk_f16_512};
    }
    for (const auto& [name, kernel] : kernels) {
      if (name == shape.chunk_kernel) return kernel(shape.chunk, args);
    }
    return work_error("no kernel {}", shape.chunk_kernel);
  }

  template <typename Kv>
  void expect_attention(const AttentionCase& c) {
    const std::size_t rows = c.positions.size();
    const std::size_t heads = c.kv_heads * c.group;
    const std::size_t cached = rows * c.kv_heads * kCapacity * c.head_dim;
    std::vector<std::byte> keys = random_cache(c.type, cached);
    std::vector<std::byte> values = random_cache(c.type, cached);
    const auto queries = normals(rows * heads * c.head_dim);
    const auto sinks = normals(c.sinks ? heads : 0);
    const compute::KvView cache = {c.type,     keys.data(), values.data(),
                                   c.kv_heads, c.head_dim,  kCapacity};
    const compute::Attention attention = {.heads = heads,
                                          .kv_heads = c.kv_heads,
                                          .head_dim = c.head_dim,
                                          .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                          .window = c.window,
                                          .softcap = c.softcap,
                                          .sinks = sinks};
    std::vector<compute::Row> list;
    std::vector<std::int32_t> sequences;
    std::size_t longest = 0;
    for (const std::int32_t position : c.positions) {
      sequences.push_back(static_cast<std::int32_t>(list.size()));
      list.push_back({.sequence = sequences.back(), .position = position});
      longest = std::max(longest, static_cast<std::size_t>(position) + 1);
    }
    std::vector<float> expected(queries.size());
    reference_->attention(list, queries.data(), cache, attention, expected.data());

    const AttentionShape shape = *attention_shape(rows, attention, cache, longest);
    Buffer queries_buffer("queries", queries);
    Buffer keys_buffer("keys", keys);
    Buffer values_buffer("values", values);
    Buffer sequences_buffer("sequences", sequences);
    Buffer positions_buffer("positions", c.positions);
    Buffer partial("partial", shape.partial_floats * sizeof(float));
    Buffer sinks_buffer("sinks", sinks);
    Buffer y("y", expected.size() * sizeof(float));
    ASSERT_LAUNCHED(run_chunks<Kv>(shape, {.queries = queries_buffer.at<const float>(),
                                           .keys = keys_buffer.at<const Kv>(),
                                           .values = values_buffer.at<const Kv>(),
                                           .sequences = sequences_buffer.at<const std::int32_t>(),
                                           .positions = positions_buffer.at<const std::int32_t>(),
                                           .partial = partial.at<float>(),
                                           .heads = narrow(heads),
                                           .kv_heads = narrow(c.kv_heads),
                                           .capacity = kCapacity,
                                           .chunks = shape.chunks,
                                           .window = narrow(c.window),
                                           .scale = attention.scale,
                                           .softcap = c.softcap}));
    ASSERT_EQ(partial.first_unwritten(), std::nullopt);
    ASSERT_LAUNCHED(launch::attention_merge(
        shape.merge, {.partial = partial.at<const float>(),
                      .sinks = c.sinks ? sinks_buffer.at<const float>() : nullptr,
                      .y = y.at<float>(),
                      .heads = narrow(heads),
                      .head_dim = narrow(c.head_dim),
                      .chunks = shape.chunks}));
    expect_near(floats(y), expected, 3e-6);
  }
};

TEST_F(GpuAttention, EveryHeadSize) {
  for (const std::size_t head_dim : {64, 128, 256, 512}) {
    expect_attention<float>({.kv_heads = 2, .group = 2, .head_dim = head_dim, .positions = {37}});
  }
}

TEST_F(GpuAttention, EveryRatioOfHeads) {
  for (const std::size_t group : {1, 4, 7, 8, 11}) {
    expect_attention<float>({.kv_heads = 2, .group = group, .positions = {20}});
  }
}

TEST_F(GpuAttention, RowsOfDifferentLengthsOverSeveralChunks) {
  expect_attention<float>({.kv_heads = 1, .group = 3, .positions = {0, 255, 300, 599}});
}

TEST_F(GpuAttention, HalfPrecisionCache) {
  for (const std::size_t head_dim : {64, 128, 256, 512}) {
    expect_attention<std::uint16_t>(
        {.group = 2, .head_dim = head_dim, .positions = {3}, .type = compute::KvType::kF16});
  }
}

TEST_F(GpuAttention, WindowsSinksAndSoftcaps) {
  for (const std::size_t window : {1, 100, 256, 300}) {
    expect_attention<float>({.group = 2, .positions = {50, 450}, .window = window});
  }
  expect_attention<float>({.group = 4, .positions = {5, 300}, .sinks = true});
  expect_attention<float>({.group = 4, .positions = {40}, .softcap = 2});
}

// --- Gated delta net
// ------------------------------------------------------------------------------

TEST_F(GpuOperators, ConvolutionStepAndItsState) {
  for (const std::size_t taps : {1, 2, 4}) {
    const std::size_t channels = 300;
    const compute::CausalConvolution convolution = {
        .channels = channels, .kernel = taps, .weight = normals(taps * channels)};
    std::vector<float> state = normals(3 * convolution.state_size());
    const std::vector<std::int32_t> sequences = {2, 0};
    const std::vector<std::int32_t> positions = {7, 0};
    const auto x = normals(2 * channels);
    Buffer x_buffer("x", x);
    Buffer weight("weight", convolution.weight);
    Buffer state_buffer("state", state);
    Buffer sequences_buffer("sequences", sequences);
    Buffer positions_buffer("positions", positions);
    Buffer y("y", x.size() * sizeof(float));
    ASSERT_LAUNCHED(launch::causal_convolution(
        *convolution_grid(2, convolution), {.x = x_buffer.at<const float>(),
                                            .weight = weight.at<const float>(),
                                            .state = state_buffer.at<float>(),
                                            .sequences = sequences_buffer.at<const std::int32_t>(),
                                            .positions = positions_buffer.at<const std::int32_t>(),
                                            .y = y.at<float>(),
                                            .channels = narrow(channels),
                                            .taps = narrow(taps),
                                            .state_size = narrow(convolution.state_size())}));
    const compute::Row rows[] = {{.sequence = 2, .position = 7}, {.sequence = 0, .position = 0}};
    std::vector<float> expected(x.size());
    reference_->causal_convolution(
        rows, x.data(), convolution,
        {.convolution = state.data(), .convolution_size = convolution.state_size()},
        expected.data());
    expect_near(floats(y), expected, 1e-6);
    EXPECT_EQ(floats(state_buffer), state);
  }
}

TEST_F(GpuOperators, DeltaRuleStepAndItsMemory) {
  for (const auto order : {compute::KeyHeadOrder::kGrouped, compute::KeyHeadOrder::kTiled}) {
    compute::DeltaRule rule = {.key_heads = 2,
                               .value_heads = 4,
                               .key_dim = 27,
                               .value_dim = 35,
                               .order = order,
                               .scale = 0.2f,
                               .rate = {-0.5f, -1, -0.1f, -2},
                               .dt_bias = normals(4)};
    const std::size_t rows = 2;
    std::vector<float> memory = normals(3 * rule.memory_size());
    const std::vector<std::int32_t> sequences = {1, 2};
    const std::vector<std::int32_t> positions = {9, 0};
    auto queries_keys = normals(rows * 2 * 2 * 27);
    reference_->l2_norm(rows * 4, 27, queries_keys.data(), 1e-6f, queries_keys.data());
    const auto values = normals(rows * 4 * 35);
    const auto b = normals(rows * 4);
    const auto a = normals(rows * 4);
    Buffer queries_keys_buffer("queries_keys", queries_keys);
    Buffer values_buffer("values", values);
    Buffer b_buffer("b", b);
    Buffer a_buffer("a", a);
    Buffer rate("rate", rule.rate);
    Buffer dt_bias("dt_bias", rule.dt_bias);
    Buffer memory_buffer("memory", memory);
    Buffer sequences_buffer("sequences", sequences);
    Buffer positions_buffer("positions", positions);
    Buffer y("y", values.size() * sizeof(float));
    ASSERT_LAUNCHED(launch::delta_step(*delta_grid(rows, rule),
                                       {.queries_keys = queries_keys_buffer.at<const float>(),
                                        .values = values_buffer.at<const float>(),
                                        .b = b_buffer.at<const float>(),
                                        .a = a_buffer.at<const float>(),
                                        .rate = rate.at<const float>(),
                                        .dt_bias = dt_bias.at<const float>(),
                                        .memory = memory_buffer.at<float>(),
                                        .sequences = sequences_buffer.at<const std::int32_t>(),
                                        .positions = positions_buffer.at<const std::int32_t>(),
                                        .y = y.at<float>(),
                                        .key_heads = 2,
                                        .value_heads = 4,
                                        .key_dim = 27,
                                        .value_dim = 35,
                                        .tiled = order == compute::KeyHeadOrder::kTiled ? 1u : 0u,
                                        .memory_size = narrow(rule.memory_size()),
                                        .scale = 0.2f}));
    const compute::Row list[] = {{.sequence = 1, .position = 9}, {.sequence = 2, .position = 0}};
    std::vector<float> expected(values.size());
    reference_->delta_rule(list, queries_keys.data(), values.data(), b.data(), a.data(), rule,
                           {.memory = memory.data(), .memory_size = rule.memory_size()},
                           expected.data());
    expect_near(floats(y), expected, 2e-6);
    // Beyond value_dim a tile has columns that mean nothing; chunks are not used.
    const std::size_t tile = rule.key_dim * compute::DeltaRule::kTile;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const std::size_t at = i % rule.memory_size();
      if (at >= rule.matrices_size()) continue;
      const std::size_t column =
          at / tile % rule.tiles() * compute::DeltaRule::kTile + at % compute::DeltaRule::kTile;
      if (column >= rule.value_dim) continue;
      ASSERT_NEAR(memory_buffer.values<float>()[i], memory[i], 2e-6 * (1 + std::abs(memory[i])));
    }
  }
}

}  // namespace
}  // namespace espalier::gpu::ESPALIER_DIALECT
