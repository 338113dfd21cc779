// The products of one group of weights, unpacked in registers, with a few rows: the same for all
// formats, wherever the codes come from. See panel.h.
#if defined(ESPALIER_CPU_GROUP_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ESPALIER_CPU_GROUP_PRODUCT_INL_H_
#undef ESPALIER_CPU_GROUP_PRODUCT_INL_H_
#else
#define ESPALIER_CPU_GROUP_PRODUCT_INL_H_
#endif

#include <cstring>

#include "compute/cpu/panel.h"
#include "compute/cpu/row_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {

// A CodeShape as a type.
template <std::size_t kGroupInputs, bool kHasMinimums, int kCodeBits>
struct Shape {
  static constexpr std::size_t kGroup = kGroupInputs;
  static constexpr std::size_t kQuads = kGroup / 4;
  static constexpr std::size_t kParts = kCodedGroup / kGroup;  // such groups in one of a row's
  static constexpr bool kMinimums = kHasMinimums;
  static constexpr int kBits = kCodeBits;
};

// Rows whose sums of a group are under way at once, in two registers each.
inline constexpr std::size_t kBatchRows = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

template <int kBits>
HWY_INLINE VI dot(VI sum, VU codes, const std::int8_t* x) {
  std::int32_t four;
  std::memcpy(&four, x, sizeof(four));
  if constexpr (kBits == 8) return dot8(sum, codes, hn::Set(DI(), four));
  return dot7(sum, codes, hn::Set(DI(), four));
}

// sums[r] = the products of a group's codes, four inputs to a vector, with row r's activations.
// Neighbouring instructions belong to different sums, so that none waits for the one before it. A
// single row's sums are taken in two halves for that, except in groups of 16: these end so soon
// that the processor has several of them under way.
template <int kBits, std::size_t kRows, std::size_t kQuads>
HWY_INLINE void dot_rows(const VU (&codes)[kQuads], const CodedGroup* x, std::size_t part,
                         VI (&sums)[kRows]) {
  constexpr std::size_t kHalves = kRows == 1 && kQuads > 4 ? 2 : 1;
  const std::size_t at = part * kQuads * 4;
  VI low[kHalves][kRows];
  VI high[kHalves][kRows];
  ESPALIER_UNROLL
  for (std::size_t h = 0; h < kHalves; ++h) {
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      low[h][r] = h == 0 ? hn::Set(DI(), x[r].offsets[part]) : hn::Zero(DI());
      high[h][r] = hn::Zero(DI());
    }
  }
  ESPALIER_UNROLL
  for (std::size_t q = 0; q < kQuads; ++q) {
    const std::size_t h = q % kHalves;
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      high[h][r] = dot<kBits>(high[h][r], codes[q], x[r].high + at + 4 * q);
      low[h][r] = dot<kBits>(low[h][r], codes[q], x[r].low + at + 4 * q);
    }
  }
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) {
    const VI upper = kHalves == 2 ? hn::Add(high[0][r], high[kHalves - 1][r]) : high[0][r];
    const VI lower = kHalves == 2 ? hn::Add(low[0][r], low[kHalves - 1][r]) : low[0][r];
    sums[r] = hn::Add(lower, hn::ShiftLeft<7>(upper));
  }
}

// total[r] += the products of a group, part `part` of the groups at x, with row r.
template <typename Shape, std::size_t kRows>
HWY_INLINE void add_group(const VU (&codes)[Shape::kQuads], VF scale, VF minimum,
                          const CodedGroup* x, std::size_t part, VF (&total)[kRows]) {
  const DF df;
  constexpr std::size_t kBatch = HWY_MIN(kRows, kBatchRows);
  ESPALIER_UNROLL
  for (std::size_t first = 0; first < kRows; first += kBatch) {
    VI dots[kBatch];
    dot_rows<Shape::kBits>(codes, x + first, part, dots);
    ESPALIER_UNROLL
    for (std::size_t b = 0; b < kBatch; ++b) {
      const CodedGroup& row = x[first + b];
      VF& sum = total[first + b];
      const VF factor = hn::Mul(scale, hn::Set(df, row.scale));
      sum = hn::MulAdd(hn::ConvertTo(df, dots[b]), factor, sum);
      if constexpr (Shape::kMinimums) {
        sum = hn::MulAdd(minimum, hn::Set(df, row.sums[part]), sum);
      }
    }
  }
}

}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
