// Products with packed matrices: time, bytes of weights a second, and the share of the read
// bandwidth that the same threads reach on a buffer of the same size in the same run.
//
//   project_bench [--benchmark_filter=Q4_1/.*] ...
//
// Arguments of a benchmark: format/outputs x inputs/rows/threads. Every call takes the next of
// several copies of the matrix, together at least 256 MB, so that weights come from memory as they
// do when a model decodes.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "compute/cpu/project.h"

namespace espalier {
namespace {

constexpr std::size_t kLeastBytes = std::size_t{256} << 20;

struct Shape {
  std::size_t outputs, inputs;
};

// Random codes, and numbers below 1 wherever a format may keep one.
std::vector<std::byte> random_weights(const pack::Format& format, std::size_t bytes) {
  std::mt19937 random(1);
  std::vector<std::byte> data(bytes);
  if (format.name == "F32") {
    for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
      const float value = std::uniform_real_distribution<float>(-1, 1)(random);
      std::memcpy(data.data() + i, &value, 4);
    }
    return data;
  }
  // As half precision these are below 1, as bfloat16 below 0.01, and none is subnormal.
  for (std::size_t i = 0; i + 2 <= bytes; i += 2) {
    const auto bits = static_cast<std::uint16_t>((random() & 0x83ff) | 0x3800);
    std::memcpy(data.data() + i, &bits, 2);
  }
  return data;
}

// Bytes a second when every thread reads its part of `data` as four streams.
double read_bandwidth(ThreadPool& pool, std::span<const std::byte> data) {
  constexpr std::size_t kStreams = 4;
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(pool.threads(), [&](std::size_t begin, std::size_t, std::size_t) {
      const std::size_t words = data.size() / sizeof(std::uint64_t) / pool.threads() / kStreams;
      const std::byte* part = data.data() + begin * kStreams * words * sizeof(std::uint64_t);
      std::uint64_t sums[kStreams][8] = {};
      for (std::size_t i = 0; i + 8 <= words; i += 8) {
        for (std::size_t s = 0; s < kStreams; ++s) {
          std::uint64_t line[8];
          std::memcpy(line, part + (s * words + i) * sizeof(std::uint64_t), sizeof(line));
          for (std::size_t w = 0; w < 8; ++w) sums[s][w] ^= line[w];
        }
      }
      benchmark::DoNotOptimize(sums);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(data.size()) / seconds.count());
  }
  return best;
}

void run_project(benchmark::State& state, const pack::Format& format, Shape shape, std::size_t rows,
                 std::size_t threads) {
  const std::size_t bytes = shape.outputs * shape.inputs / format.block_values * format.block_bytes;
  const std::size_t copies = (kLeastBytes + bytes - 1) / bytes;
  const std::vector<std::byte> data = random_weights(format, copies * bytes);
  std::vector<float> x(rows * shape.inputs);
  std::mt19937 random(2);
  for (float& value : x) value = std::uniform_real_distribution<float>(-1, 1)(random);
  std::vector<float> y(rows * shape.outputs);
  ThreadPool pool(threads);
  compute::Workspace workspace;
  const double bandwidth = read_bandwidth(pool, data);

  std::size_t copy = 0;
  for (auto _ : state) {
    const pack::Matrix w = *pack::block_matrix(format, shape.outputs, shape.inputs,
                                               std::span(data).subspan(copy * bytes, bytes));
    cpu::project(pool, workspace, x.data(), rows, w, cpu::Activations::kCoded, y.data());
    benchmark::DoNotOptimize(y.data());
    copy = (copy + 1) % copies;
  }
  const double total = static_cast<double>(state.iterations()) * static_cast<double>(bytes);
  state.counters["weights"] =
      benchmark::Counter(total, benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
  state.counters["of_read"] = benchmark::Counter(total / bandwidth, benchmark::Counter::kIsRate);
  state.counters["MACs"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(rows * shape.outputs) *
          static_cast<double>(shape.inputs),
      benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

void register_all() {
  const Shape shapes[] = {{4096, 4096}, {4096, 14336}, {1536, 576}, {576, 1536}};
  for (const pack::Format& format : pack::formats()) {
    for (const Shape shape : shapes) {
      if (shape.inputs % format.block_values != 0) continue;
      for (const std::size_t rows : {1, 4, 64, 512}) {
        for (const std::size_t threads : {1, 2}) {
          const std::string name = fmt::format("{}/{}x{}/rows:{}/threads:{}", format.name,
                                               shape.outputs, shape.inputs, rows, threads);
          benchmark::RegisterBenchmark(name.c_str(), [=, &format](benchmark::State& state) {
            run_project(state, format, shape, rows, threads);
          })->UseRealTime();
        }
      }
    }
  }
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  espalier::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
