// The products of bytes that Highway lacks, one small section per instruction set: in every 32-bit
// lane, the dot product of four unsigned with four signed bytes. All are exact.
#if defined(ESPALIER_CPU_BYTE_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ESPALIER_CPU_BYTE_DOT_INL_H_
#undef ESPALIER_CPU_BYTE_DOT_INL_H_
#else
#define ESPALIER_CPU_BYTE_DOT_INL_H_
#endif

#include "hwy/highway.h"

// Highway detects VNNI before it chooses AVX3_DL, but does not pass the flag to the compiler.
#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR \
  HWY_TARGET_STR_AVX3  \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512bitalg,avx512vpopcntdq,avx512vnni"
#endif

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;
using DU = hn::ScalableTag<std::uint32_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;

// A byte that needs all eight bits, as its upper seven and its last: x86 before VNNI adds pairs of
// products in 16 bits, which two products of eight by seven bits overflow.
struct SplitBytes {
  VU upper;  // byte >> 1
  VU last;   // byte & 1
};

HWY_INLINE SplitBytes split_bytes(VU bytes) {
  const DU d;
  return {hn::And(hn::ShiftRight<1>(bytes), hn::Set(d, 0x7f7f7f7fu)),
          hn::And(bytes, hn::Set(d, 0x01010101u))};
}

// sum + Σ a·b over the four bytes of each lane; a at most 127 (dot7) or 255 (dot8), b −127 … 127.
#if HWY_TARGET == HWY_AVX3_DL

HWY_INLINE VI dot7(VI sum, VU a, VI b) { return VI{_mm512_dpbusd_epi32(sum.raw, a.raw, b.raw)}; }
HWY_INLINE VI dot8(VI sum, VU a, VI b) { return dot7(sum, a, b); }

#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4

#if HWY_TARGET == HWY_AVX3
HWY_INLINE VI pairs(VU a, VI b) { return VI{_mm512_maddubs_epi16(a.raw, b.raw)}; }
HWY_INLINE VI sum_pairs(VI p, VI factors) { return VI{_mm512_madd_epi16(p.raw, factors.raw)}; }
#elif HWY_TARGET == HWY_AVX2
HWY_INLINE VI pairs(VU a, VI b) { return VI{_mm256_maddubs_epi16(a.raw, b.raw)}; }
HWY_INLINE VI sum_pairs(VI p, VI factors) { return VI{_mm256_madd_epi16(p.raw, factors.raw)}; }
#else
HWY_INLINE VI pairs(VU a, VI b) { return VI{_mm_maddubs_epi16(a.raw, b.raw)}; }
HWY_INLINE VI sum_pairs(VI p, VI factors) { return VI{_mm_madd_epi16(p.raw, factors.raw)}; }
#endif

HWY_INLINE VI dot7(VI sum, VU a, VI b) {
  return hn::Add(sum, sum_pairs(pairs(a, b), hn::Set(DI(), 0x00010001)));
}
HWY_INLINE VI dot8(VI sum, VU a, VI b) {
  const SplitBytes split = split_bytes(a);
  const VI upper = sum_pairs(pairs(split.upper, b), hn::Set(DI(), 0x00020002));
  return hn::Add(dot7(sum, split.last, b), upper);
}

#elif HWY_TARGET == HWY_NEON

HWY_INLINE VI dot7(VI sum, VU a, VI b) {
  const int8x16_t bytes_a = vreinterpretq_s8_u32(a.raw);
  const int8x16_t bytes_b = vreinterpretq_s8_s32(b.raw);
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(bytes_a), vget_low_s8(bytes_b)));
  const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(bytes_a), vget_high_s8(bytes_b)));
  return VI{vaddq_s32(sum.raw, vpaddq_s32(low, high))};
}
HWY_INLINE VI dot8(VI sum, VU a, VI b) {
  const SplitBytes split = split_bytes(a);
  const VI upper = dot7(hn::Zero(DI()), split.upper, b);
  return hn::Add(dot7(sum, split.last, b), hn::Add(upper, upper));
}

#else

HWY_INLINE VI dot8(VI sum, VU a, VI b) {
  const VU byte = hn::Set(DU(), 0xffu);
  const auto product = [&](VU a_byte, VI b_byte) {
    return hn::Mul(hn::BitCast(DI(), hn::And(a_byte, byte)), hn::ShiftRight<24>(b_byte));
  };
  sum = hn::Add(sum, product(a, hn::ShiftLeft<24>(b)));
  sum = hn::Add(sum, product(hn::ShiftRight<8>(a), hn::ShiftLeft<16>(b)));
  sum = hn::Add(sum, product(hn::ShiftRight<16>(a), hn::ShiftLeft<8>(b)));
  return hn::Add(sum, product(hn::ShiftRight<24>(a), b));
}
HWY_INLINE VI dot7(VI sum, VU a, VI b) { return dot8(sum, a, b); }

#endif

}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
