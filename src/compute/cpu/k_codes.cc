// Panels of GGUF's formats with super-blocks of 256 values: the K-quants, IQ4_XS and the ternary
// ones.
#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/k_codes.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <cstddef>

#include "compute/cpu/unpack-inl.h"
#include "pack/iq_quants.h"
#include "pack/k_quants.h"
#include "pack/low_bit_quants.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

// scale · byte b of `words`, for b 0 … 3, as the scales of groups 4·w … 4·w + 3.
template <typename To>
HWY_INLINE void write_scales(std::size_t w, VF scale, VU words, To& to) {
  unrolled(std::make_index_sequence<4>(),
           [&](auto b) HWY_ATTR { to.scale(4 * w + b, hn::Mul(scale, byte_to_float<b>(words))); });
}

// The same for minimums, which are subtracted.
template <typename To>
HWY_INLINE void write_minimums(std::size_t w, VF minimum, VU words, To& to) {
  unrolled(std::make_index_sequence<4>(), [&](auto b) HWY_ATTR {
    to.minimum(4 * w + b, hn::Neg(hn::Mul(minimum, byte_to_float<b>(words))));
  });
}

// The codes of 2 bits, 16 bytes of which bits 2·kPair, 2·kPair + 1 are 16 codes.
template <int kPair>
HWY_INLINE void two_bit_codes(const FourWords& words, VU* codes) {
  ESPALIER_UNROLL
  for (std::size_t w = 0; w < 4; ++w) codes[w] = bits_of_bytes<2 * kPair, 2, 0>(words.v[w]);
}

struct CodesQ2_K {
  using Block = pack::BlockQ2_K;
  static constexpr CodeShape kShape = {.group = 16, .minimums = true};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    const VU scale_and_minimum = load_word(rows, at + offsetof(Block, scale));
    const VF scale = half_words_to_float(scale_and_minimum);
    const VF minimum = half_words_to_float(hn::ShiftRight<16>(scale_and_minimum));
    const FourWords scales = load_four_words(rows, at + offsetof(Block, scales));
    ESPALIER_UNROLL
    for (std::size_t w = 0; w < 4; ++w) {
      write_scales(w, scale, low_nibbles(scales.v[w]), to);
      write_minimums(w, minimum, high_nibbles(scales.v[w]), to);
    }
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t codes_at = at + offsetof(Block, codes) + half * 32;
      const FourWords words[2] = {load_four_words(rows, codes_at),
                                  load_four_words(rows, codes_at + 16)};
      unrolled(std::make_index_sequence<8>(), [&](auto g) HWY_ATTR {
        VU codes[4];
        two_bit_codes<g / 2>(words[g % 2], codes);
        to.group(half * 8 + g, codes);
      });
    }
  }
};

struct CodesQ3_K {
  using Block = pack::BlockQ3_K;
  static constexpr CodeShape kShape = {.group = 16, .zero = 4};
  static constexpr std::size_t kOddAt = offsetof(Block, scale);

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    const VF scale = load_half<Block>(rows, at, offsetof(Block, scale));
    const VF scale_of_32 = hn::Mul(scale, hn::Set(DF(), 32));
    const VU low0 = load_word(rows, at + offsetof(Block, scales));
    const VU low1 = load_word(rows, at + offsetof(Block, scales) + 4);
    const VU high = load_word(rows, at + offsetof(Block, scales) + 8);
    const auto write = [&](std::size_t w, VU codes) HWY_ATTR {
      unrolled(std::make_index_sequence<4>(), [&](auto b) HWY_ATTR {
        // scale · (code − 32), exact either way
        to.scale(4 * w + b, hn::MulSub(scale, byte_to_float<b>(codes), scale_of_32));
      });
    };
    write(0, hn::Or(low_nibbles(low0), bits_of_bytes<0, 2, 4>(high)));
    write(1, hn::Or(low_nibbles(low1), bits_of_bytes<2, 2, 4>(high)));
    write(2, hn::Or(high_nibbles(low0), bits_of_bytes<4, 2, 4>(high)));
    write(3, hn::Or(high_nibbles(low1), bits_of_bytes<6, 2, 4>(high)));

    const FourWords top[2] = {load_four_words(rows, at + offsetof(Block, high)),
                              load_four_words(rows, at + offsetof(Block, high) + 16)};
    unrolled(std::make_index_sequence<2>(), [&](auto half) HWY_ATTR {
      const std::size_t low_at = at + offsetof(Block, low) + half * 32;
      const FourWords low[2] = {load_four_words(rows, low_at), load_four_words(rows, low_at + 16)};
      unrolled(std::make_index_sequence<8>(), [&](auto g) HWY_ATTR {
        VU codes[4];
        two_bit_codes<g / 2>(low[g % 2], codes);
        ESPALIER_UNROLL
        for (std::size_t w = 0; w < 4; ++w) {
          codes[w] = hn::Or(codes[w], bits_of_bytes<4 * half + g / 2, 1, 2>(top[g % 2].v[w]));
        }
        to.group(half * 8 + g, codes);
      });
    });
  }
};

// Scales and minimums of Q4_K and Q5_K, whose blocks begin with both F16 and the codes of groups.
template <typename Rows, typename To>
HWY_INLINE void write_q4_k_scales(const Rows& rows, std::size_t at, To& to) {
  const FourWords head = load_four_words(rows, at);
  const VF scale = half_words_to_float(head.v[0]);
  const VF minimum = half_words_to_float(hn::ShiftRight<16>(head.v[0]));
  write_scales(0, scale, bits_of_bytes<0, 6, 0>(head.v[1]), to);
  write_minimums(0, minimum, bits_of_bytes<0, 6, 0>(head.v[2]), to);
  write_scales(1, scale, hn::Or(low_nibbles(head.v[3]), bits_of_bytes<6, 2, 4>(head.v[1])), to);
  write_minimums(1, minimum, hn::Or(high_nibbles(head.v[3]), bits_of_bytes<6, 2, 4>(head.v[2])),
                 to);
}

struct CodesQ4_K {
  using Block = pack::BlockQ4_K;
  static constexpr CodeShape kShape = {.minimums = true};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    write_q4_k_scales(rows, at, to);
    for (std::size_t pair = 0; pair < 4; ++pair) {
      const EightWords words = load_eight_words(rows, at + offsetof(Block, codes) + pair * 32);
      VU codes[8];
      ESPALIER_UNROLL
      for (std::size_t w = 0; w < 8; ++w) codes[w] = low_nibbles(words.v[w]);
      to.group(2 * pair, codes);
      ESPALIER_UNROLL
      for (std::size_t w = 0; w < 8; ++w) codes[w] = high_nibbles(words.v[w]);
      to.group(2 * pair + 1, codes);
    }
  }
};

struct CodesQ5_K {
  using Block = pack::BlockQ5_K;
  static constexpr CodeShape kShape = {.minimums = true};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    write_q4_k_scales(rows, at, to);
    const EightWords high = load_eight_words(rows, at + offsetof(Block, high));
    unrolled(std::make_index_sequence<4>(), [&](auto pair) HWY_ATTR {
      const EightWords low = load_eight_words(rows, at + offsetof(Block, codes) + pair * 32);
      VU codes[8];
      ESPALIER_UNROLL
      for (std::size_t w = 0; w < 8; ++w) {
        codes[w] = hn::Or(low_nibbles(low.v[w]), bits_of_bytes<2 * pair, 1, 4>(high.v[w]));
      }
      to.group(2 * pair, codes);
      ESPALIER_UNROLL
      for (std::size_t w = 0; w < 8; ++w) {
        codes[w] = hn::Or(high_nibbles(low.v[w]), bits_of_bytes<2 * pair + 1, 1, 4>(high.v[w]));
      }
      to.group(2 * pair + 1, codes);
    });
  }
};

struct CodesQ6_K {
  using Block = pack::BlockQ6_K;
  static constexpr CodeShape kShape = {.group = 16, .zero = 32};
  static constexpr std::size_t kOddAt = offsetof(Block, scale);

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    const VF scale = load_half<Block>(rows, at, offsetof(Block, scale));
    const FourWords scales = load_four_words(rows, at + offsetof(Block, scales));
    ESPALIER_UNROLL
    for (std::size_t w = 0; w < 4; ++w) {
      unrolled(std::make_index_sequence<4>(), [&](auto b) HWY_ATTR {
        to.scale(4 * w + b, hn::Mul(scale, signed_byte_to_float<b>(scales.v[w])));
      });
    }
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t low_at = at + offsetof(Block, low) + half * 64;
      const EightWords high = load_eight_words(rows, at + offsetof(Block, high) + half * 32);
      unrolled(std::make_index_sequence<8>(), [&](auto g) HWY_ATTR {
        constexpr std::size_t kPair = g / 2;  // of bits in `high`
        constexpr std::size_t kPart = g % 2;
        const FourWords low = load_four_words(rows, low_at + kPair % 2 * 32 + kPart * 16);
        VU codes[4];
        ESPALIER_UNROLL
        for (std::size_t w = 0; w < 4; ++w) {
          const VU nibbles = kPair < 2 ? low_nibbles(low.v[w]) : high_nibbles(low.v[w]);
          codes[w] = hn::Or(nibbles, bits_of_bytes<2 * kPair, 2, 4>(high.v[4 * kPart + w]));
        }
        to.group(half * 8 + g, codes);
      });
    }
  }
};

// level + 127 for the 16 levels of IQ4.
constexpr std::uint8_t kIq4Codes[16] = {0,   23,  44,  62,  78,  92,  105, 117,
                                        128, 140, 152, 165, 180, 196, 216, 240};

struct CodesIQ4_XS {
  using Block = pack::BlockIQ4_XS;
  static constexpr CodeShape kShape = {.zero = 127, .bits = 8};

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    const VU head = load_word(rows, at + offsetof(Block, scale));  // and scales_high above it
    const VU low = load_word(rows, at + offsetof(Block, scales_low));
    const VF scale = half_words_to_float(head);
    unrolled(std::make_index_sequence<8>(), [&](auto g) HWY_ATTR {
      const VU code = hn::Or(hn::And(hn::ShiftRight<4 * g>(low), words_of(15)),
                             hn::And(hn::ShiftRight<12 + 2 * g>(head), words_of(0x30)));
      const VI centred = hn::Sub(hn::BitCast(DI(), code), hn::Set(DI(), 32));
      to.scale(g, hn::Mul(scale, hn::ConvertTo(DF(), centred)));
    });
    for (std::size_t g = 0; g < 8; ++g) {
      const FourWords words = load_four_words(rows, at + offsetof(Block, codes) + g * 16);
      VU codes[8];
      ESPALIER_UNROLL
      for (std::size_t w = 0; w < 4; ++w) {
        codes[w] = look_up(kIq4Codes, low_nibbles(words.v[w]));
        codes[w + 4] = look_up(kIq4Codes, high_nibbles(words.v[w]));
      }
      to.group(g, codes);
    }
  }
};

struct CodesTQ2_0 {
  using Block = pack::BlockTQ2_0;
  static constexpr CodeShape kShape = {.zero = 1};
  static constexpr std::size_t kOddAt = offsetof(Block, scale);

  template <typename Rows, typename To>
  static HWY_INLINE void unpack(const Rows& rows, std::size_t at, To& to) {
    const VF scale = load_half<Block>(rows, at, offsetof(Block, scale));
    ESPALIER_UNROLL
    for (std::size_t g = 0; g < 8; ++g) to.scale(g, scale);
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t codes_at = at + offsetof(Block, codes) + half * 32;
      const FourWords words[2] = {load_four_words(rows, codes_at),
                                  load_four_words(rows, codes_at + 16)};
      unrolled(std::make_index_sequence<4>(), [&](auto pair) HWY_ATTR {
        VU codes[8];
        two_bit_codes<pair>(words[0], codes);
        two_bit_codes<pair>(words[1], codes + 4);
        to.group(half * 4 + pair, codes);
      });
    }
  }
};

constexpr CodeKernel kKernels[] = {
    block_kernel<CodesQ2_K>("Q2_K"),   block_kernel<CodesQ3_K>("Q3_K"),
    block_kernel<CodesQ4_K>("Q4_K"),   block_kernel<CodesQ5_K>("Q5_K"),
    block_kernel<CodesQ6_K>("Q6_K"),   block_kernel<CodesIQ4_XS>("IQ4_XS"),
    block_kernel<CodesTQ2_0>("TQ2_0"),
};

std::span<const CodeKernel> get_k_code_kernels() { return kKernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_k_code_kernels);

std::span<const CodeKernel> k_code_kernels() { return HWY_DYNAMIC_DISPATCH(get_k_code_kernels)(); }

}  // namespace espalier::cpu
#endif
