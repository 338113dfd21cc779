// The operators on the CPU: weights stay packed and mapped, threads split outputs, rows and heads.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "compute/cpu/project.h"
#include "compute/ops.h"

namespace espalier::cpu {

// `threads` 0 means one per processor. Nothing is allocated by a pass whose number of rows and
// positions has been seen before.
[[nodiscard]] std::unique_ptr<compute::Ops> make_ops(std::size_t threads,
                                                     Activations activations = Activations::kCoded);

// The instruction set that the kernels use here, by Highway's name: "AVX3_DL" is AVX-512 with VNNI.
[[nodiscard]] const char* instructions();
// All that the processor has of those that kernels are compiled for, the best first.
[[nodiscard]] std::vector<std::string> instruction_sets();

}  // namespace espalier::cpu
