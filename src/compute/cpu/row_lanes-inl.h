// Reading several rows of a packed matrix at once, a row per lane.
#if defined(ESPALIER_CPU_ROW_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ESPALIER_CPU_ROW_LANES_INL_H_
#undef ESPALIER_CPU_ROW_LANES_INL_H_
#else
#define ESPALIER_CPU_ROW_LANES_INL_H_
#endif

#include <cstring>
#include <utility>

#include "compute/cpu/byte_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {

inline constexpr std::size_t kLanes = HWY_LANES(float);

// Where each lane's row is, rows lying one after the other as in files.
struct RowLanes {
  const std::uint8_t* row[kLanes];
  HWY_ALIGN std::int32_t offset[kLanes];  // row[l] − row[0]
};

// Four consecutive 32-bit words of every row; word w of lane l's row is lane l of v[w].
struct FourWords {
  VU v[4];
};

// The little-endian 32-bit word at `at` of every row.
HWY_INLINE VU load_word(const RowLanes& rows, std::size_t at) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  return hn::GatherOffset(DU(), reinterpret_cast<const std::uint32_t*>(rows.row[0] + at),
                          hn::Load(DI(), rows.offset));
#else
  HWY_ALIGN std::uint32_t words[kLanes];
  for (std::size_t l = 0; l < kLanes; ++l) std::memcpy(words + l, rows.row[l] + at, 4);
  return hn::Load(DU(), words);
#endif
}

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE FourWords load_four_words(const RowLanes& rows, std::size_t at) {
  return {{load_word(rows, at), load_word(rows, at + 4), load_word(rows, at + 8),
           load_word(rows, at + 12)}};
}

#else

// 16 bytes of row i in the first quarter of the vector, of row i + 4 in the second, and so on.
HWY_INLINE VU load_quarters(const RowLanes& rows, std::size_t i, std::size_t at) {
  const auto quarter = [&](std::size_t lane) HWY_ATTR {
    return hn::BitCast(hn::Full128<std::uint32_t>(),
                       hn::LoadU(hn::Full128<std::uint8_t>(), rows.row[lane] + at));
  };
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  const hn::Half<DU> half;
  return hn::Combine(DU(), hn::Combine(half, quarter(i + 12), quarter(i + 8)),
                     hn::Combine(half, quarter(i + 4), quarter(i)));
#elif HWY_TARGET == HWY_AVX2
  return hn::Combine(DU(), quarter(i + 4), quarter(i));
#else
  return quarter(i);
#endif
}

HWY_INLINE FourWords load_four_words(const RowLanes& rows, std::size_t at) {
  const hn::RepartitionToWide<DU> wide;
  const auto lower = [&](VU a, VU b) {
    return hn::BitCast(DU(), hn::InterleaveLower(wide, hn::BitCast(wide, a), hn::BitCast(wide, b)));
  };
  const auto upper = [&](VU a, VU b) {
    return hn::BitCast(DU(), hn::InterleaveUpper(wide, hn::BitCast(wide, a), hn::BitCast(wide, b)));
  };
  const VU a = load_quarters(rows, 0, at);
  const VU b = load_quarters(rows, 1, at);
  const VU c = load_quarters(rows, 2, at);
  const VU d = load_quarters(rows, 3, at);
  const VU ab01 = hn::InterleaveLower(DU(), a, b);
  const VU ab23 = hn::InterleaveUpper(DU(), a, b);
  const VU cd01 = hn::InterleaveLower(DU(), c, d);
  const VU cd23 = hn::InterleaveUpper(DU(), c, d);
  return {{lower(ab01, cd01), upper(ab01, cd01), lower(ab23, cd23), upper(ab23, cd23)}};
}

#endif

// The lower halves of 32-bit words, as IEEE half precision.
HWY_INLINE VF half_words_to_float(VU words) {
  const hn::Rebind<std::uint16_t, DU> bits;
  const hn::Rebind<hwy::float16_t, DF> halves;
  return hn::PromoteTo(DF(), hn::BitCast(halves, hn::TruncateTo(bits, words)));
}

// The byte at `at` of every row.
HWY_INLINE VU load_byte(const RowLanes& rows, std::size_t at) {
  return hn::And(load_word(rows, at), hn::Set(DU(), 0xff));
}

// The half-precision number at `offset` of the blocks at byte `at` of every row. The last in a
// block is read with the two bytes before it, so as not to read beyond.
template <typename Block>
HWY_INLINE VF load_half(const RowLanes& rows, std::size_t at, std::size_t offset) {
  if (offset + 4 <= sizeof(Block)) return half_words_to_float(load_word(rows, at + offset));
  return half_words_to_float(hn::ShiftRight<16>(load_word(rows, at + offset - 2)));
}

// Rows side by side (arrange.h): what would be byte `at` of all rows begins at kLanes · at.
struct SideBySide {
  const std::uint8_t* bytes;
};

HWY_INLINE VU load_word(const SideBySide& rows, std::size_t at) {
  return hn::LoadU(DU(), reinterpret_cast<const std::uint32_t*>(rows.bytes + kLanes * at));
}

HWY_INLINE FourWords load_four_words(const SideBySide& rows, std::size_t at) {
  return {{load_word(rows, at), load_word(rows, at + 4), load_word(rows, at + 8),
           load_word(rows, at + 12)}};
}

HWY_INLINE VU load_byte(const SideBySide& rows, std::size_t at) {
  return hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<std::uint8_t, DU>(), rows.bytes + kLanes * at));
}

template <typename Block>
HWY_INLINE VF load_half(const SideBySide& rows, std::size_t at, std::size_t offset) {
  const hn::Rebind<hwy::float16_t, DF> halves;
  const auto* half = reinterpret_cast<const hwy::float16_t*>(rows.bytes + kLanes * (at + offset));
  return hn::PromoteTo(DF(), hn::LoadU(halves, half));
}

struct EightWords {
  VU v[8];
};

template <typename Rows>
HWY_INLINE EightWords load_eight_words(const Rows& rows, std::size_t at) {
  const FourWords a = load_four_words(rows, at);
  const FourWords b = load_four_words(rows, at + 16);
  return {{a.v[0], a.v[1], a.v[2], a.v[3], b.v[0], b.v[1], b.v[2], b.v[3]}};
}

// Byte `b` of every lane as a signed number.
template <int b>
HWY_INLINE VF signed_byte_to_float(VU words) {
  return hn::ConvertTo(DF(),
                       hn::ShiftRight<24>(hn::BitCast(DI(), hn::ShiftLeft<24 - 8 * b>(words))));
}

// Calls body(index) for 0, 1, … count − 1 with the index as a constant.
template <std::size_t... kIndex, typename Body>
HWY_INLINE void unrolled(std::index_sequence<kIndex...>, const Body& body) {
  (body(std::integral_constant<std::size_t, kIndex>()), ...);
}

}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
