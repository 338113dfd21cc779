// Products of the same rows with several matrices, the parts of one launch: those that make
// queries, keys and values, or gate and up.
#pragma once

#include <cstddef>

namespace espalier::gpu::cuda {

inline constexpr std::size_t kMostParts = 4;  // of a launch

}  // namespace espalier::gpu::cuda
