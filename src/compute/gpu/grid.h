// How many blocks of how many threads a kernel runs with.
#pragma once

#include <cstdint>

namespace espalier::gpu {

// Threads that work in step: a warp, Metal's SIMD-group.
inline constexpr std::uint32_t kWarpThreads = 32;

// What every GPU that Espalier supports has.
inline constexpr std::uint32_t kMostThreads = 1024;  // of a block
inline constexpr std::uint32_t kMostBlocksX = 0x7fffffff;
inline constexpr std::uint32_t kMostBlocksY = 65535;
inline constexpr std::uint32_t kMostSharedBytes = 32768;  // of a block: Metal's bound

struct Grid {
  std::uint32_t blocks_x = 1;
  std::uint32_t blocks_y = 1;
  std::uint32_t threads = kWarpThreads;  // of a block: whole warps
};

}  // namespace espalier::gpu
