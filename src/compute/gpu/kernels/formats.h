// Every packed format that kernels decode.
#pragma once

#include "compute/gpu/kernels/exl3.h"
#include "compute/gpu/kernels/gguf_formats.h"
#include "compute/gpu/kernels/group_formats.h"
#include "compute/gpu/kernels/iq_formats.h"

// entry(name in kernels' names, how it is decoded)
#define ESPALIER_FORMATS(entry)                                                                    \
  entry(f32, Blocks<PlainF32>) entry(f16, Blocks<PlainF16>) entry(bf16, Blocks<PlainBF16>)         \
      entry(f32_t, Transposed<PlainF32>) entry(f16_t, Transposed<PlainF16>) entry(                 \
          bf16_t, Transposed<PlainBF16>) entry(q4_0, Blocks<Q4_0>) entry(q4_1, Blocks<Q4_1>)       \
          entry(q5_0, Blocks<Q5_0>) entry(q5_1, Blocks<Q5_1>) entry(q8_0, Blocks<Q8_0>) entry(     \
              q2_k, Blocks<Q2_K>) entry(q3_k, Blocks<Q3_K>) entry(q4_k, Blocks<Q4_K>)              \
              entry(q5_k, Blocks<Q5_K>) entry(q6_k, Blocks<Q6_K>) entry(q8_k, Blocks<Q8_K>) entry( \
                  q1_0, Blocks<Q1_0>) entry(q2_0, Blocks<Q2_0>) entry(tq1_0, Blocks<TQ1_0>)        \
                  entry(tq2_0, Blocks<TQ2_0>) entry(mxfp4, Blocks<MXFP4>) entry(                   \
                      nvfp4, Blocks<NVFP4>) entry(iq4_nl, Blocks<IQ4_NL>)                          \
                      entry(iq4_xs, Blocks<IQ4_XS>) entry(iq1_s, GridBlocks<IQ1_S>) entry(         \
                          iq1_m, GridBlocks<IQ1_M>) entry(iq2_xxs, GridBlocks<IQ2_XXS>)            \
                          entry(iq2_xs, GridBlocks<IQ2_XS>) entry(iq2_s, GridBlocks<IQ2_S>)        \
                              entry(iq3_xxs, GridBlocks<IQ3_XXS>) entry(iq3_s, GridBlocks<IQ3_S>)  \
                                  entry(mlx_affine, MlxAffine) entry(mlx_mxfp4, MlxMxfp4)          \
                                      entry(mlx_mxfp8, MlxMxfp8) entry(mlx_nvfp4, MlxNvfp4)        \
                                          entry(gptq_v1, Gptq<0x11111111u>)                        \
                                              entry(gptq_v2, Gptq<0>) entry(awq, Awq)              \
                                                  entry(ct_int4, CompressedInt4)                   \
                                                      entry(exl3_3inst, Exl3<ThreeInst>)           \
                                                          entry(exl3_mcg, Exl3<Mcg>)               \
                                                              entry(exl3_mul1, Exl3<Mul1>)         \
                                                                  entry(exl3_ngram, Exl3Ngram)
