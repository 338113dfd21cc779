#include "measure/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "compute/gpu/tuned.h"

namespace espalier::measure {
namespace {

// Times of a kernel in a class.
struct Times {
  std::size_t cells = 0;
  double logarithms = 0;  // their sum

  [[nodiscard]] double mean() const { return std::exp(logarithms / static_cast<double>(cells)); }
};

struct Class {
  std::set<std::pair<Shape, std::uint64_t>> cells;  // shapes and rows
  std::map<std::string, Times> kernels;
};

std::string number(std::uint64_t value, std::uint64_t all) {
  return value == all ? fmt::format("{:#x}", value) : fmt::format("{}", value);
}

}  // namespace

GpuBenchOptions tuning_options() {
  GpuBenchOptions options;
  options.formats = {"Q4_0",        "Q4_K",        "Q5_K",        "Q6_K",           "Q8_0",
                     "Q2_K",        "Q3_K",        "IQ2_XXS",     "IQ3_S",          "IQ4_XS",
                     "MXFP4",       "NVFP4",       "MLX-4-g64",   "GPTQ-V1-4-g128", "AWQ-4-g128",
                     "BF16",        "F16",         "EXL3-MUL1-2", "EXL3-MUL1-3",    "EXL3-MUL1-4",
                     "EXL3-MUL1-5", "EXL3-MUL1-6", "EXL3-MCG-4",  "EXL3-3INST-4"};
  options.shapes = {{4096, 4096}, {4096, 14336}, {14336, 4096}};
  options.rows = {1, 2, 4, 8, 16, 32, 128, 1024};
  options.repeats = 5;
  return options;
}

std::string tuned_lines(const std::string& gpu, std::span<const GpuLine> lines) {
  using Key = std::tuple<std::string, std::uint64_t, std::uint32_t>;  // format, weights, rows
  std::map<Key, Class> classes;
  for (const GpuLine& line : lines) {
    const std::uint64_t weights = line.shape[0] * line.shape[1];
    Class& found = classes[{line.format, gpu::class_of(gpu::kWeightClasses, weights),
                            gpu::class_of(gpu::kRowClasses, line.rows)}];
    found.cells.emplace(line.shape, line.rows);
    Times& times = found.kernels[line.kernel];
    ++times.cells;
    times.logarithms += std::log(line.seconds.median);
  }
  std::string text =
      "// Written by espalier bench --tune: GPU, format, most rows, most weights, kernel.\n";
  for (const auto& [key, found] : classes) {
    const auto& [format, weights, rows] = key;
    std::string fastest;
    double least = 0;
    std::string times;
    for (const auto& [kernel, measured] : found.kernels) {
      if (measured.cells != found.cells.size()) continue;
      const double mean = measured.mean();
      times += fmt::format("{}{} {:.1f}", times.empty() ? "" : ", ", kernel, 1e6 * mean);
      if (fastest.empty() || mean < least) {
        fastest = kernel;
        least = mean;
      }
    }
    if (fastest.empty()) continue;
    text += fmt::format("{{\"{}\", \"{}\", {}, {}, \"{}\"}},  // µs: {}\n", gpu, format,
                        number(rows, std::end(gpu::kRowClasses)[-1]),
                        number(weights, std::end(gpu::kWeightClasses)[-1]), fastest, times);
  }
  return text;
}

}  // namespace espalier::measure
