// How each block format's codes, scales and minimums come out of its blocks: the layouts are those
// of src/pack, read for several rows at a time. A format is one struct here and one entry in the
// table of code_kernels.cc.
#if defined(ESPALIER_CPU_CODE_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ESPALIER_CPU_CODE_FORMATS_INL_H_
#undef ESPALIER_CPU_CODE_FORMATS_INL_H_
#else
#define ESPALIER_CPU_CODE_FORMATS_INL_H_
#endif

#include "compute/cpu/panel.h"
#include "compute/cpu/row_lanes-inl.h"
#include "pack/k_quants.h"
#include "pack/legacy_quants.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {

// What a format unpacks a block into.
struct BlockWriter {
  std::uint8_t* to_codes;
  float* to_scales;
  float* to_minimums;

  // Codes of inputs 4·quad … 4·quad + 3 of the block.
  HWY_INLINE void codes(std::size_t quad, VU four) const {
    hn::Store(four, DU(), reinterpret_cast<std::uint32_t*>(to_codes) + quad * kLanes);
  }
  HWY_INLINE void scale(std::size_t group, VF scale) const {
    hn::Store(scale, DF(), to_scales + group * kLanes);
  }
  HWY_INLINE void minimum(std::size_t group, VF minimum) const {
    hn::Store(minimum, DF(), to_minimums + group * kLanes);
  }
};

HWY_INLINE VU low_nibbles(VU words) { return hn::And(words, hn::Set(DU(), 0x0f0f0f0fu)); }
HWY_INLINE VU high_nibbles(VU words) { return low_nibbles(hn::ShiftRight<4>(words)); }

// Two bits of every byte, `shift` bits up, where a code's bits 4 and 5 belong.
template <int shift>
HWY_INLINE VU crumbs_as_bits_4_5(VU words) {
  const VU crumbs = hn::And(hn::ShiftRight<shift>(words), hn::Set(DU(), 0x03030303u));
  return hn::ShiftLeft<4>(crumbs);
}

// Members: Block, the layout; kGroup, weights that share a scale; kZero, the code that stands for
// zero; kMinimums, whether groups have one; kCodeBits, 7 or 8; unpack, for the blocks at byte `at`
// of all rows.
struct CodesQ4_0 {
  using Block = pack::BlockQ4_0;
  static constexpr std::size_t kGroup = 32;
  static constexpr int kZero = 8;
  static constexpr bool kMinimums = false;
  static constexpr int kCodeBits = 7;

  static HWY_INLINE void unpack(const RowLanes& rows, std::size_t at, const BlockWriter& to) {
    to.scale(0, half_words_to_float(load_word(rows, at + offsetof(Block, scale))));
    const FourWords words = load_four_words(rows, at + offsetof(Block, codes));
    for (std::size_t w = 0; w < 4; ++w) {
      to.codes(w, low_nibbles(words.v[w]));
      to.codes(w + 4, high_nibbles(words.v[w]));
    }
  }
};

struct CodesQ4_1 {
  using Block = pack::BlockQ4_1;
  static constexpr std::size_t kGroup = 32;
  static constexpr int kZero = 0;
  static constexpr bool kMinimums = true;
  static constexpr int kCodeBits = 7;

  static HWY_INLINE void unpack(const RowLanes& rows, std::size_t at, const BlockWriter& to) {
    const VU scale_and_minimum = load_word(rows, at + offsetof(Block, scale));
    to.scale(0, half_words_to_float(scale_and_minimum));
    to.minimum(0, half_words_to_float(hn::ShiftRight<16>(scale_and_minimum)));
    const FourWords words = load_four_words(rows, at + offsetof(Block, codes));
    for (std::size_t w = 0; w < 4; ++w) {
      to.codes(w, low_nibbles(words.v[w]));
      to.codes(w + 4, high_nibbles(words.v[w]));
    }
  }
};

struct CodesQ8_0 {
  using Block = pack::BlockQ8_0;
  static constexpr std::size_t kGroup = 32;
  static constexpr int kZero = 128;
  static constexpr bool kMinimums = false;
  static constexpr int kCodeBits = 8;

  static HWY_INLINE void unpack(const RowLanes& rows, std::size_t at, const BlockWriter& to) {
    to.scale(0, half_words_to_float(load_word(rows, at + offsetof(Block, scale))));
    const VU to_unsigned = hn::Set(DU(), 0x80808080u);
    for (std::size_t part = 0; part < 2; ++part) {
      const FourWords words = load_four_words(rows, at + offsetof(Block, codes) + part * 16);
      for (std::size_t w = 0; w < 4; ++w) {
        to.codes(part * 4 + w, hn::Xor(words.v[w], to_unsigned));
      }
    }
  }
};

struct CodesQ6_K {
  using Block = pack::BlockQ6_K;
  static constexpr std::size_t kGroup = 16;
  static constexpr int kZero = 32;
  static constexpr bool kMinimums = false;
  static constexpr int kCodeBits = 7;

  static HWY_INLINE void unpack(const RowLanes& rows, std::size_t at, const BlockWriter& to) {
    // The block's scale is its last two bytes: reading the word that ends there stays inside.
    const VU scale_word = load_word(rows, at + offsetof(Block, scale) - 2);
    const VF scale = half_words_to_float(hn::ShiftRight<16>(scale_word));
    const FourWords scales = load_four_words(rows, at + offsetof(Block, scales));
    for (std::size_t w = 0; w < 4; ++w) {
      to.scale(4 * w, hn::Mul(scale, signed_byte_to_float<0>(scales.v[w])));
      to.scale(4 * w + 1, hn::Mul(scale, signed_byte_to_float<1>(scales.v[w])));
      to.scale(4 * w + 2, hn::Mul(scale, signed_byte_to_float<2>(scales.v[w])));
      to.scale(4 * w + 3, hn::Mul(scale, signed_byte_to_float<3>(scales.v[w])));
    }
    for (std::size_t half = 0; half < 2; ++half) {
      for (std::size_t part = 0; part < 2; ++part) {
        const std::size_t low_at = at + offsetof(Block, low) + half * 64 + part * 16;
        const FourWords low = load_four_words(rows, low_at);
        const FourWords low_odd = load_four_words(rows, low_at + 32);
        const FourWords high =
            load_four_words(rows, at + offsetof(Block, high) + half * 32 + part * 16);
        for (std::size_t w = 0; w < 4; ++w) {
          const std::size_t quad = half * 32 + part * 4 + w;
          to.codes(quad, hn::Or(low_nibbles(low.v[w]), crumbs_as_bits_4_5<0>(high.v[w])));
          to.codes(quad + 8, hn::Or(low_nibbles(low_odd.v[w]), crumbs_as_bits_4_5<2>(high.v[w])));
          to.codes(quad + 16, hn::Or(high_nibbles(low.v[w]), crumbs_as_bits_4_5<4>(high.v[w])));
          to.codes(quad + 24, hn::Or(high_nibbles(low_odd.v[w]), crumbs_as_bits_4_5<6>(high.v[w])));
        }
      }
    }
  }
};

}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
