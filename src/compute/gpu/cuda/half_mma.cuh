// The instruction of the half-precision tensor cores that few rows use.
#pragma once

#include <cstdint>

namespace espalier::gpu::cuda {

// sums [16, 8] += a [16, 16] · b [16, 8], of halves; a lane's parts as PTX has them for m16n8k16.
__device__ inline void multiply(float (&sums)[4], std::uint32_t a0, std::uint32_t a1,
                                std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace espalier::gpu::cuda
