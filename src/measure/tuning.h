// From times of every kernel to the table of the fastest (compute/gpu/tuned.h).
#pragma once

#include <span>
#include <string>

#include "measure/gpu_bench.h"

namespace espalier::measure {

// The formats, shapes and rows that stand for all.
[[nodiscard]] GpuBenchOptions tuning_options();

// A line of tuned_kernels.inc for each format, class of rows and class of weights that `lines`
// have, with the times it rests on. The fastest is the kernel with the least geometric mean over
// the class, of those that serve all that was measured in it; a class that no kernel serves whole
// has no line.
[[nodiscard]] std::string tuned_lines(const std::string& gpu, std::span<const GpuLine> lines);

}  // namespace espalier::measure
