// The gated delta rule of one layer of Qwen3-Next: 32 heads of 128 × 128.
//
//   delta_rule_bench
//
// The arguments are rows at a time, of 512, and threads. `per_row` is the time of a row, `madds`
// the multiply-adds that the recurrence would need (three for each element of a matrix) a second: a
// core with two 512-bit units has 32 for each cycle.
#include <benchmark/benchmark.h>

#include <random>

#include "compute/cpu/cpu_ops.h"

namespace espalier {
namespace {

constexpr std::size_t kRows = 512;

std::vector<float> normals(std::size_t count, float spread) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

void delta_rule(benchmark::State& state) {
  const auto batch = static_cast<std::size_t>(state.range(0));
  const auto ops = cpu::make_ops(static_cast<std::size_t>(state.range(1)));
  const compute::DeltaRule rule = {.key_heads = 16,
                                   .value_heads = 32,
                                   .key_dim = 128,
                                   .value_dim = 128,
                                   .scale = 0.0884f,
                                   .rate = std::vector<float>(32, -0.2f),
                                   .dt_bias = normals(32, 1)};
  const std::size_t keys = 2 * rule.key_heads * rule.key_dim;
  const std::size_t width = rule.value_heads * rule.value_dim;
  const auto queries_keys = normals(kRows * keys, 0.0884f);
  const auto values = normals(kRows * width, 1);
  const auto b = normals(kRows * rule.value_heads, 1);
  const auto a = normals(kRows * rule.value_heads, 1);
  std::vector<float> memory(rule.memory_size());
  std::vector<float> y(values.size());
  std::vector<compute::Row> rows(kRows);
  for (std::size_t r = 0; r < kRows; ++r) rows[r].position = static_cast<std::int32_t>(r);

  while (state.KeepRunning()) {
    for (std::size_t r = 0; r + batch <= kRows; r += batch) {
      ops->delta_rule(std::span(rows).subspan(r, batch), queries_keys.data() + r * keys,
                      values.data() + r * width, b.data() + r * rule.value_heads,
                      a.data() + r * rule.value_heads, rule,
                      {.memory = memory.data(), .memory_size = memory.size()},
                      y.data() + r * width);
    }
  }
  using benchmark::Counter;
  const double done = static_cast<double>(kRows / batch * batch);
  state.counters["per_row"] = Counter(done, Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.counters["madds"] = Counter(done * 3 * static_cast<double>(width * rule.key_dim),
                                    Counter::kIsIterationInvariantRate);
}
BENCHMARK(delta_rule)
    ->ArgNames({"rows", "threads"})
    ->ArgsProduct({{1, 7, 64, 512}, {1, 2}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace espalier

BENCHMARK_MAIN();
