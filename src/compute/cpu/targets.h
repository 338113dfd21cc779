// Which instruction sets the CPU kernels are compiled for. Every file that includes Highway
// includes this first, so that all dispatch tables have the same entries.
//
// x86: baseline, SSE4, AVX2, AVX3 (AVX-512 F, BW, DQ, VL) and AVX3_DL (Ice Lake and later, with
// VNNI). ARM: NEON. SVE is left out because panels need a number of lanes known at compile time,
// SSSE3 because every processor with it and without SSE4 is over fifteen years old.
#pragma once

#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

// Before a loop over something kept in registers: its trip count is known, and it must be unrolled
// completely for its arrays to become registers.
#if defined(__clang__)
#define ESPALIER_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ESPALIER_UNROLL _Pragma("GCC unroll 16")
#endif
