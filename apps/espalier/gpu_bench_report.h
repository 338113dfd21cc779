// How `bench --device cuda` prints what it measured.
#pragma once

#include <string>

#include "measure/gpu_bench.h"

namespace espalier::app {

// As text in columns or, where `output` is "md" or "json", in that form.
[[nodiscard]] std::string gpu_bench_report(const measure::GpuBench& bench,
                                           const std::string& output);

// "4096x14336"; of several parts "4096x4096+1024x4096".
[[nodiscard]] std::string shape_text(const measure::Shape& shape, std::size_t parts = 1);

}  // namespace espalier::app
