// Panels of GGUF's formats with small blocks: 32 or 64 values with a scale of their own.
#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/legacy_codes.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <cstddef>

#include "compute/cpu/unpack-inl.h"
#include "pack/iq_grids.h"
#include "pack/iq_quants.h"
#include "pack/legacy_quants.h"
#include "pack/micro_scaling.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

// The group of 16 bytes whose low nibbles are the first 16 codes and whose high nibbles the
// next 16.
template <typename To, typename Map>
HWY_INLINE void write_nibbles(const FourWords& words, To& to, const Map& map) {
  VU codes[8];
  ESPALIER_UNROLL
  for (std::size_t w = 0; w < 4; ++w) {
    codes[w] = map(low_nibbles(words.v[w]));
    codes[w + 4] = map(high_nibbles(words.v[w]));
  }
  to.group(0, codes);
}

constexpr auto kAsTheyAre = [](VU codes) HWY_ATTR { return codes; };

struct CodesQ4_0 {
  using Block = pack::BlockQ4_0;
  static constexpr CodeShape kShape = {.zero = 8};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    to.scale(0, load_half<Block>(rows, at, offsetof(Block, scale)));
    write_nibbles(load_four_words(rows, at + offsetof(Block, codes)), to, kAsTheyAre);
  }
};

struct CodesQ4_1 {
  using Block = pack::BlockQ4_1;
  static constexpr CodeShape kShape = {.minimums = true};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    const VU scale_and_minimum = load_word(rows, at + offsetof(Block, scale));
    to.scale(0, half_words_to_float(scale_and_minimum));
    to.minimum(0, half_words_to_float(hn::ShiftRight<16>(scale_and_minimum)));
    write_nibbles(load_four_words(rows, at + offsetof(Block, codes)), to, kAsTheyAre);
  }
};

// Bits 4·quad … 4·quad + 3 of every word, as bit 4 of its four bytes.
template <std::size_t kQuad>
HWY_INLINE VU fifth_bits(VU words) {
  const VU nibble = hn::And(hn::ShiftRight<4 * kQuad>(words), words_of(0xf));
  const VU spread = hn::Or(hn::Or(nibble, hn::ShiftLeft<7>(nibble)),
                           hn::Or(hn::ShiftLeft<14>(nibble), hn::ShiftLeft<21>(nibble)));
  return hn::ShiftLeft<4>(hn::And(spread, bytes_of(1)));
}

// Codes of 5 bits: nibbles and a word with the fifth bits.
template <typename To>
HWY_INLINE void write_five_bits(const FourWords& words, VU high, To& to) {
  VU codes[8];
  unrolled(std::make_index_sequence<4>(), [&](auto w) HWY_ATTR {
    codes[w] = hn::Or(low_nibbles(words.v[w]), fifth_bits<w>(high));
    codes[w + 4] = hn::Or(high_nibbles(words.v[w]), fifth_bits<w + 4>(high));
  });
  to.group(0, codes);
}

struct CodesQ5_0 {
  using Block = pack::BlockQ5_0;
  static constexpr CodeShape kShape = {.zero = 16};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    to.scale(0, load_half<Block>(rows, at, offsetof(Block, scale)));
    write_five_bits(load_four_words(rows, at + offsetof(Block, codes)),
                    load_word(rows, at + offsetof(Block, high)), to);
  }
};

struct CodesQ5_1 {
  using Block = pack::BlockQ5_1;
  static constexpr CodeShape kShape = {.minimums = true};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    const VU scale_and_minimum = load_word(rows, at + offsetof(Block, scale));
    to.scale(0, half_words_to_float(scale_and_minimum));
    to.minimum(0, half_words_to_float(hn::ShiftRight<16>(scale_and_minimum)));
    write_five_bits(load_four_words(rows, at + offsetof(Block, codes)),
                    load_word(rows, at + offsetof(Block, high)), to);
  }
};

struct CodesQ8_0 {
  using Block = pack::BlockQ8_0;
  static constexpr CodeShape kShape = {.zero = 128, .bits = 8};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    to.scale(0, load_half<Block>(rows, at, offsetof(Block, scale)));
    VU codes[8];
    ESPALIER_UNROLL
    for (std::size_t part = 0; part < 2; ++part) {
      const FourWords words = load_four_words(rows, at + offsetof(Block, codes) + part * 16);
      ESPALIER_UNROLL
      for (std::size_t w = 0; w < 4; ++w) codes[part * 4 + w] = hn::Xor(words.v[w], bytes_of(0x80));
    }
    to.group(0, codes);
  }
};

// level + 127 for the 16 levels.
constexpr std::uint8_t kIq4Codes[16] = {0,   23,  44,  62,  78,  92,  105, 117,
                                        128, 140, 152, 165, 180, 196, 216, 240};

struct CodesIQ4_NL {
  using Block = pack::BlockIQ4_NL;
  static constexpr CodeShape kShape = {.zero = 127, .bits = 8};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    to.scale(0, load_half<Block>(rows, at, offsetof(Block, scale)));
    write_nibbles(load_four_words(rows, at + offsetof(Block, codes)), to,
                  [](VU codes) HWY_ATTR { return look_up(kIq4Codes, codes); });
  }
};

// Twice an E2M1 number, plus 12; scales are halved to match.
constexpr std::uint8_t kE2m1Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct CodesMXFP4 {
  using Block = pack::BlockMXFP4;
  static constexpr CodeShape kShape = {.zero = 12};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    // Half of 2^(e − 127): a float's exponent e − 1, or subnormal where e is 0 or 1.
    const VU exponent = load_byte(rows, at + offsetof(Block, exponent));
    const VU normal = hn::ShiftLeft<23>(hn::Sub(exponent, words_of(1)));
    const VU subnormal = hn::ShiftLeft<21>(hn::Add(exponent, words_of(1)));
    const VU bits = hn::IfThenElse(hn::Lt(exponent, words_of(2)), subnormal, normal);
    to.scale(0, hn::BitCast(DF(), bits));
    write_nibbles(load_four_words(rows, at + offsetof(Block, codes)), to,
                  [](VU codes) HWY_ATTR { return look_up(kE2m1Codes, codes); });
  }
};

struct CodesNVFP4 {
  using Block = pack::BlockNVFP4;
  static constexpr CodeShape kShape = {.group = 16, .zero = 12};

  // Half of an E4M3 number without its sign: 2^(e − 8) · (1 + m/8), or 2^−10 · m where e is 0. The
  // whole byte 0x7f counts as 0.
  template <int b>
  static HWY_INLINE VF half_e4m3(VU words) {
    const VU code = hn::And(hn::ShiftRight<8 * b>(words), words_of(0xff));
    const VU number = hn::And(code, words_of(0x7f));
    const VU normal = hn::Add(hn::ShiftLeft<20>(number), words_of(119u << 23));
    const VF subnormal =
        hn::Mul(hn::ConvertTo(DF(), hn::BitCast(DI(), number)), hn::Set(DF(), 0x1p-10f));
    const VU bits =
        hn::IfThenElse(hn::Lt(number, words_of(8)), hn::BitCast(DU(), subnormal), normal);
    return hn::BitCast(DF(), hn::IfThenZeroElse(hn::Eq(code, words_of(0x7f)), bits));
  }

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    const VU scales = load_word(rows, at + offsetof(Block, scales));
    unrolled(std::make_index_sequence<4>(),
             [&](auto g) HWY_ATTR { to.scale(g, half_e4m3<g>(scales)); });
    ESPALIER_UNROLL
    for (std::size_t pair = 0; pair < 2; ++pair) {
      const FourWords words = load_four_words(rows, at + offsetof(Block, codes) + 16 * pair);
      ESPALIER_UNROLL
      for (std::size_t half = 0; half < 2; ++half) {
        const VU a = words.v[2 * half];
        const VU b = words.v[2 * half + 1];
        const VU codes[4] = {
            look_up(kE2m1Codes, low_nibbles(a)), look_up(kE2m1Codes, low_nibbles(b)),
            look_up(kE2m1Codes, high_nibbles(a)), look_up(kE2m1Codes, high_nibbles(b))};
        to.group(2 * pair + half, codes);
      }
    }
  }
};

constexpr CodeKernel kKernels[] = {
    block_kernel<CodesQ4_0>("Q4_0"),   block_kernel<CodesQ4_1>("Q4_1"),
    block_kernel<CodesQ5_0>("Q5_0"),   block_kernel<CodesQ5_1>("Q5_1"),
    block_kernel<CodesQ8_0>("Q8_0"),   block_kernel<CodesIQ4_NL>("IQ4_NL"),
    block_kernel<CodesMXFP4>("MXFP4"), block_kernel<CodesNVFP4>("NVFP4"),
};

std::span<const CodeKernel> get_legacy_code_kernels() { return kKernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_legacy_code_kernels);

std::span<const CodeKernel> legacy_code_kernels() {
  return HWY_DYNAMIC_DISPATCH(get_legacy_code_kernels)();
}

}  // namespace espalier::cpu
#endif
