// The operators on the CPU: weights stay packed and mapped, threads split outputs, rows and heads.
#pragma once

#include <cstddef>
#include <memory>

#include "compute/cpu/project.h"
#include "compute/ops.h"

namespace espalier::cpu {

// `threads` 0 means one per processor. Nothing is allocated by a pass whose number of rows and
// positions has been seen before.
[[nodiscard]] std::unique_ptr<compute::Ops> make_ops(std::size_t threads,
                                                     Activations activations = Activations::kCoded);

}  // namespace espalier::cpu
