// Formats as the kernels of codes.cu read them: integer codes of at most 8 bits, and for each group
// of inputs a scale and perhaps an offset: weight = scale · code + offset.
//
// A tile is 16 outputs by some units of 128 inputs. A lane of the warp that multiplies it holds its
// codes in quads: quad r of 16 a unit has four codes, of output lane / 4 + 8 · (r % 2) and of
// consecutive inputs from 32 · (r / 4) + 16 · (r / 2 % 2) + 4 · (lane % 4) on. They become the
// first operand of m16n8k16 as two pairs of halves, of the first and third code and of the second
// and fourth. A code whose last bit is bit p of a mantissa, below the exponent of 2^(10 − p), is
// the half 2^(10 − p) + code. So a pair comes out of a word by one logic operation wherever it is
// among a half's last ten bits; a rotation brings the rest there. What a half has more than its
// code, its bias, depends on the input alone, and the product takes it back.
//
// In memory, a tile has its bits in planes of 8, 4, 2 or 1 bits a code, in each of which a lane's
// words lie as it loads them, four at a time; then what its rows need for their scales (a header).
// It has as many bytes as in the file.
#pragma once

#include "compute/gpu/kernels/gguf_formats.h"
#include "compute/gpu/kernels/group_formats.h"

namespace espalier::gpu::cuda::codes {

constexpr int kUnit = 128;     // inputs
constexpr int kTileRows = 16;  // outputs
constexpr float kTwo23 = 8388608.0f;

// What only the matrix knows.
struct FormatArguments {
  std::uint32_t scale_type;   // pack::ScaleType, of formats that keep scales apart
  std::uint32_t group_shift;  // the same: 32-groups in a group, as a power of two
  std::uint32_t tile_groups;  // the same
  float global_scale;
};

template <typename T>
__device__ inline T load(const std::uint8_t* from) {
  return *reinterpret_cast<const T*>(from);
}
__device__ inline float low_half(std::uint32_t word) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word)));
}
__device__ inline float high_half(std::uint32_t word) { return low_half(word >> 16); }
__device__ inline float half_in(const std::uint32_t (&words)[2], int i) {
  return i % 2 == 0 ? low_half(words[i / 2]) : high_half(words[i / 2]);
}
// 2²³ + byte i of a word.
__device__ inline float byte_above(std::uint32_t word, int i) {
  return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 | i));
}
__device__ inline void copy(std::uint8_t* to, Codes from, int bytes) {
  for (int i = 0; i < bytes; ++i) to[i] = from == nullptr ? 0 : from[i];
}

// A row of a tile of the file: which blocks it has.
struct SourceRow {
  const Weights& weights;
  std::uint32_t row;    // may be beyond the last
  std::uint32_t first;  // input; the same

  template <typename Block>
  __device__ Codes block(int i) const {
    const std::uint32_t blocks = weights.cols / Block::kValues;
    const std::uint32_t index = first / Block::kValues + i;
    if (row >= weights.rows || index >= blocks) return nullptr;
    return weights.data + (static_cast<std::uint64_t>(row) * blocks + index) * Block::kBytes;
  }
};

// --- Codes ---------------------------------------------------------------------------------------

// Pairs of halves: of a step of 32 inputs, by 16 of them, as m16n8k16's first operand wants them.
using Pairs = std::uint32_t[2][4];

__host__ __device__ constexpr std::uint32_t both(std::uint32_t half) { return half * 0x10001u; }

__device__ inline std::uint32_t rotated(std::uint32_t word, int right) {
  return right == 0 ? word : word >> right | word << (32 - right);
}
// (word & mask) | rest
__device__ inline std::uint32_t chosen(std::uint32_t word, std::uint32_t mask, std::uint32_t rest) {
#if defined(__CUDA_ARCH__)
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(rest) : "r"(word), "r"(mask), "r"(rest));
  return rest;
#else
  return (word & mask) | rest;
#endif
}

// Codes in one plane, or in two of which the first has the upper bits.
template <int kUpper_, int kLower_, bool kSigned>
struct Planes {
  static constexpr int kUpper = kUpper_;
  static constexpr int kLower = kLower_;
  static constexpr int kBits = kUpper + kLower;
  static constexpr bool kBiased = true;
  // Bytes are stored as signed ones, other codes from 0 on.
  static constexpr std::uint32_t kFlip = kSigned && kBits == 8 ? 128 : 0;

  // The bits of a mantissa from the tenth on are fields of kUpper; in which an input's code is.
  static __host__ __device__ constexpr int field(int step, int half, int second) {
    return kUpper == 8   ? 0
           : kUpper == 4 ? second
           : kUpper == 2 ? 2 * half + second
                         : 4 * (step % 2) + 2 * half + second;
  }
  static __host__ __device__ constexpr int last_bit(int field) {
    return 10 - kUpper * (field + 1) - kLower;
  }
  // How far its word is rotated for that: the upper bits', the lower bits'.
  static __host__ __device__ constexpr int upper_turn(int row, int second) {
    return 8 * (kUpper == 8 ? second : row);
  }
  static __host__ __device__ constexpr int lower_turn(int row, int step, int half) {
    return 8 * row + kLower * (kUpper == 2 ? step % 2 : kLower == 2 ? half : step % 2 * 2 + half);
  }
  // What a half of an input of the unit has more than the code's number.
  static __host__ __device__ float bias(int input) {
    const int bit = last_bit(field(input / 32, input / 16 % 2, input % 2));
    return static_cast<float>((1 << (10 - bit)) + (kSigned ? 1 << (kBits - 1) : 0));
  }

  template <int kWidth>
  static __device__ std::uint32_t word(const std::uint8_t* plane, int lane, int r) {
    const int word = r * kWidth / 8;
    return load<std::uint32_t>(plane + word / 4 * 512 + lane * 16 + word % 4 * 4);
  }

  // Four quads: a step of 32 inputs.
  static __device__ void read(Pairs& a, const std::uint8_t* tile, int lane, int step, int units) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i % 2;
      const int half = i / 2;
      const std::uint32_t upper = word<kUpper>(tile, lane, 4 * step + i);
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const int last = last_bit(field(step, half, second));
        std::uint32_t pair =
            chosen(rotated(upper, upper_turn(row, second)),
                   both(((1 << kUpper) - 1) << (last + kLower)), both((25 - last) << 10));
        if constexpr (kLower != 0) {
          const std::uint32_t lower =
              word<kLower>(tile + units * kUnit * 2 * kUpper, lane, 4 * step + i);
          pair = chosen(rotated(lower, lower_turn(row, step, half)),
                        both(((1 << kLower) - 1) << last), pair);
        }
        a[half][row + 2 * second] = pair;
      }
    }
  }

  // The bits in a plane's word of code c of quad r.
  static __device__ std::uint32_t place(std::uint32_t code, bool lower, int r, int c) {
    const int step = r / 4;
    const int half = r / 2 % 2;
    const int row = r % 2;
    const int last = last_bit(field(step, half, c % 2));
    const int turn = lower ? lower_turn(row, step, half) : upper_turn(row, c % 2);
    const int width = lower ? kLower : kUpper;
    const std::uint32_t bits = (lower ? code : code >> kLower) & ((1u << width) - 1);
    const std::uint32_t there = bits << (last + (lower ? 0 : kLower)) << (c / 2 * 16);
    return rotated(there, (32 - turn) % 32);
  }
};

// Words of the two quads of 16 inputs in which codes have four bits.
struct Nibbles {
  static constexpr int kUpper = 4;
  static constexpr int kLower = 0;
  static constexpr int kBits = 4;
  static constexpr std::uint32_t kFlip = 0;
  static __device__ uint2 words(const std::uint8_t* tile, int lane, int step) {
    const uint4 two_steps = load<uint4>(tile + step / 2 * 512 + lane * 16);
    return step % 2 == 0 ? make_uint2(two_steps.x, two_steps.y)
                         : make_uint2(two_steps.z, two_steps.w);
  }
};

// E2M1: sign, exponent and mantissa at their places in a half are the number by 2⁻¹⁴. Where a
// word's four pairs have theirs leaves no bit free; two have the sign beside them.
struct E2m1 : Nibbles {
  static constexpr bool kBiased = false;
  static __host__ __device__ float bias(int) { return 0; }
  static __device__ void read(Pairs& a, const std::uint8_t* tile, int lane, int step, int) {
    const uint2 words = Nibbles::words(tile, lane, step);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t word = j == 0 ? words.x : words.y;
      a[j][0] = word & 0x8e008e00;
      a[j][2] = word << 3 & 0x8e008e00;
      a[j][1] = (word << 6 & 0x0e000e00) | (word << 1 & 0x80008000);
      a[j][3] = (word << 9 & 0x0e000e00) | (word << 2 & 0x80008000);
    }
  }
  static __device__ std::uint32_t place(std::uint32_t code, bool, int r, int c) {
    const int pair = 2 * (r % 2) + c % 2;
    const int sign = 0xdecf >> (4 * pair) & 15;
    return ((code & 7) << (9 - 3 * pair) | code >> 3 << sign) << (c / 2 * 16);
  }
};

// IQ4's levels: places in a table of 16 bytes, pack::kIq4Levels + 128.
struct Iq4Levels : Nibbles {
  static constexpr bool kBiased = true;
  static __host__ __device__ float bias(int) { return 1024 + 128; }
  // A permutation takes its places from four nibbles side by side.
  static __device__ void read(Pairs& a, const std::uint8_t* tile, int lane, int step, int) {
    const uint2 words = Nibbles::words(tile, lane, step);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t word = j == 0 ? words.x : words.y;
      const std::uint32_t places = word & 0x77777777;
      const std::uint32_t halves = (word >> 1 & 0x44444444) | 0x32103210;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t of_quad = places >> (16 * i);
        const std::uint32_t levels =
            __byte_perm(__byte_perm(0x3f2d1801, 0x766a5d4f, of_quad),
                        __byte_perm(0xa6998d81, 0xf1d9c5b5, of_quad), halves >> (16 * i));
        a[j][i] = __byte_perm(levels, 0x64646464, 0x4240);
        a[j][i + 2] = __byte_perm(levels, 0x64646464, 0x4341);
      }
    }
  }
  static __device__ std::uint32_t place(std::uint32_t code, bool, int r, int c) {
    return code << (16 * (r % 2) + 4 * c);
  }
};

// What formats have unless they say otherwise: two units a tile, groups of 32, no offset, and
// nothing that their numbers lack.
struct Usual {
  static constexpr int kUnits = 2;
  static constexpr float kFactor = 1;
  static constexpr int kGroup = 32;
  static constexpr bool kOffset = false;
};

// A block of GGUF's whose codes and scales are found without looking at the matrix.
template <typename Block, int kHeader>
struct BlockFormat : Usual {
  static __host__ __device__ int header_bytes(const FormatArguments&) { return kHeader; }
  template <typename Format>
  static __device__ std::uint32_t code_of(const Weights& w, std::uint32_t row, std::uint32_t col) {
    const SourceRow source{w, row, col};
    const Codes block = source.template block<Block>(0);
    if (block == nullptr) return 0;
    return Block::code(block, col % Block::kValues) ^ Format::Bits::kFlip;
  }
};

// --- Blocks of 32 with halves for scales ---------------------------------------------------------

// The halves of a row's blocks, one or (kOffsets) two of each.
template <typename Block, typename Codes_, int kUnits_, bool kOffsets>
struct HalfScales : BlockFormat<Block, kTileRows * 8 * kUnits_*(kOffsets ? 2 : 1)> {
  using Bits = Codes_;
  static constexpr int kUnits = kUnits_;
  static constexpr bool kOffset = kOffsets;
  static constexpr int kRowBytes = 8 * kUnits;

  struct Numbers {
    std::uint32_t scales[2], offsets[2];
    __device__ Numbers(const std::uint8_t* header, int row, int half, const FormatArguments&) {
      const std::uint8_t* from = header + row * kRowBytes + half * (kRowBytes / 2);
      read(scales, from);
      if constexpr (kOffsets) read(offsets, from + kTileRows * kRowBytes);
    }
    static __device__ void read(std::uint32_t (&to)[2], const std::uint8_t* from) {
      to[0] = load<std::uint32_t>(from);
      if constexpr (kUnits == 2) to[1] = load<std::uint32_t>(from + 4);
    }
    __device__ float scale(int g) const { return half_in(scales, g); }
    __device__ float offset(int g) const { return half_in(offsets, g); }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    for (int i = 0; i < 4 * kUnits; ++i) {
      const Codes block = source.template block<Block>(i);
      copy(to + r * kRowBytes + 2 * i, block, 2);
      if constexpr (kOffsets) {
        copy(to + (kTileRows + r) * kRowBytes + 2 * i, block == nullptr ? block : block + 2, 2);
      }
    }
  }
};

struct CodesQ4_0 : HalfScales<Q4_0, Planes<4, 0, true>, 2, false> {};
struct CodesQ4_1 : HalfScales<Q4_1, Planes<4, 0, false>, 2, true> {};
struct CodesQ5_0 : HalfScales<Q5_0, Planes<4, 1, true>, 2, false> {};
struct CodesQ5_1 : HalfScales<Q5_1, Planes<4, 1, false>, 2, true> {};
struct CodesQ8_0 : HalfScales<Q8_0, Planes<8, 0, true>, 1, false> {};
struct CodesIQ4_NL : HalfScales<IQ4_NL, Iq4Levels, 2, false> {};

// --- K-quants ------------------------------------------------------------------------------------

template <typename Block, typename Codes_>
struct KWithMinimum : BlockFormat<Block, kTileRows * 16> {
  using Bits = Codes_;
  static constexpr bool kOffset = true;

  struct Numbers {
    std::uint32_t scales, minima;
    float d, d_above, m, m_above;
    __device__ Numbers(const std::uint8_t* header, int row, int half, const FormatArguments&) {
      const uint4 u = load<uint4>(header + row * 16);
      d = low_half(u.x);
      m = -high_half(u.x);
      d_above = -kTwo23 * d;
      m_above = -kTwo23 * m;
      scales = half == 0 ? u.y & 0x3f3f3f3f : (u.w & 0x0f0f0f0f) | (u.y >> 2 & 0x30303030);
      minima = half == 0 ? u.z & 0x3f3f3f3f : (u.w >> 4 & 0x0f0f0f0f) | (u.z >> 2 & 0x30303030);
    }
    __device__ float scale(int g) const { return fmaf(d, byte_above(scales, g), d_above); }
    __device__ float offset(int g) const { return fmaf(m, byte_above(minima, g), m_above); }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    copy(to + r * 16, source.template block<Block>(0), 16);
  }
};
using CodesQ4_K = KWithMinimum<Q4_K, Planes<4, 0, false>>;
using CodesQ5_K = KWithMinimum<Q5_K, Planes<4, 1, false>>;

// A header of kFirst bytes of each row, then kSecond of each row.
template <int kFirst, int kSecond>
__device__ inline void split_header(std::uint8_t* to, int r, Codes first, Codes second) {
  copy(to + r * kFirst, first, kFirst);
  copy(to + kTileRows * kFirst + r * kSecond, second, kSecond);
}
__device__ inline Codes at(Codes block, int offset) {
  return block == nullptr ? nullptr : block + offset;
}

struct CodesQ6_K : BlockFormat<Q6_K, kTileRows * 18> {
  using Bits = Planes<4, 2, true>;
  static constexpr int kGroup = 16;
  struct Numbers {
    std::uint32_t scales[2];
    float d;
    __device__ Numbers(const std::uint8_t* header, int row, int half, const FormatArguments&) {
      const uint2 u = load<uint2>(header + row * 16 + half * 8);
      scales[0] = u.x ^ 0x80808080, scales[1] = u.y ^ 0x80808080;
      d = low_half(load<std::uint16_t>(header + kTileRows * 16 + row * 2));
    }
    __device__ float scale(int g) const {
      return (byte_above(scales[g / 4], g % 4) - (kTwo23 + 128)) * d;
    }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    const Codes b = source.block<Q6_K>(0);
    split_header<16, 2>(to, r, at(b, 192), at(b, 208));
  }
};

struct CodesQ3_K : BlockFormat<Q3_K, kTileRows * 14> {
  using Bits = Planes<2, 1, true>;
  static constexpr int kGroup = 16;
  struct Numbers {
    std::uint32_t scales[2];
    float d;
    __device__ Numbers(const std::uint8_t* header, int row, int half, const FormatArguments&) {
      const std::uint8_t* from = header + row * 12;
      const auto u0 = load<std::uint32_t>(from) >> (4 * half);
      const auto u1 = load<std::uint32_t>(from + 4) >> (4 * half);
      const auto u2 = load<std::uint32_t>(from + 8) >> (4 * half);
      scales[0] = (u0 & 0x0f0f0f0f) | (u2 << 4 & 0x30303030);
      scales[1] = (u1 & 0x0f0f0f0f) | (u2 << 2 & 0x30303030);
      d = low_half(load<std::uint16_t>(header + kTileRows * 12 + row * 2));
    }
    __device__ float scale(int g) const {
      return (byte_above(scales[g / 4], g % 4) - (kTwo23 + 32)) * d;
    }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    const Codes b = source.block<Q3_K>(0);
    split_header<12, 2>(to, r, at(b, 96), at(b, 108));
  }
};

struct CodesQ2_K : BlockFormat<Q2_K, kTileRows * 20> {
  using Bits = Planes<2, 0, false>;
  static constexpr int kGroup = 16;
  static constexpr bool kOffset = true;
  struct Numbers {
    std::uint32_t groups[2];
    float d, d_above, m, m_above;
    __device__ Numbers(const std::uint8_t* header, int row, int half, const FormatArguments&) {
      const uint2 u = load<uint2>(header + row * 16 + half * 8);
      groups[0] = u.x, groups[1] = u.y;
      const auto factors = load<std::uint32_t>(header + kTileRows * 16 + row * 4);
      d = low_half(factors);
      m = -high_half(factors);
      d_above = -kTwo23 * d;
      m_above = -kTwo23 * m;
    }
    __device__ float scale(int g) const {
      return fmaf(d, byte_above(groups[g / 4] & 0x0f0f0f0f, g % 4), d_above);
    }
    __device__ float offset(int g) const {
      return fmaf(m, byte_above(groups[g / 4] >> 4 & 0x0f0f0f0f, g % 4), m_above);
    }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    const Codes b = source.block<Q2_K>(0);
    split_header<16, 4>(to, r, b, at(b, 80));
  }
};

struct CodesQ8_K : BlockFormat<Q8_K, kTileRows * 4> {
  using Bits = Planes<8, 0, true>;
  static constexpr int kGroup = 128;
  struct Numbers {
    float d;
    __device__ Numbers(const std::uint8_t* header, int row, int, const FormatArguments&)
        : d(load<float>(header + row * 4)) {}
    __device__ float scale(int) const { return d; }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    copy(to + r * 4, source.block<Q8_K>(0), 4);
  }
};

struct CodesIQ4_XS : BlockFormat<IQ4_XS, kTileRows * 8> {
  using Bits = Iq4Levels;
  struct Numbers {
    std::uint32_t low, high;
    float d;
    __device__ Numbers(const std::uint8_t* header, int row, int half, const FormatArguments&) {
      const uint2 u = load<uint2>(header + row * 8);
      d = low_half(u.x);
      high = u.x >> (16 + 8 * half);
      low = u.y >> (16 * half);
    }
    __device__ float scale(int g) const {
      const std::uint32_t code = (low >> (4 * g) & 15) | (high >> (2 * g) & 3) << 4;
      return (__uint_as_float(0x4b000000 | code) - (kTwo23 + 32)) * d;
    }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    copy(to + r * 8, source.block<IQ4_XS>(0), 8);
  }
};

// --- One scale for 256, 128 or 64 ----------------------------------------------------------------

// Codes 0, 1, 2, 3 that stand for kStep · code − kLess, times a half.
template <typename Block, typename Codes_, int kScales, int kScaleAt, int kStep, int kLess,
          int kGroup_>
struct FewScales : BlockFormat<Block, kTileRows * 2 * kScales> {
  using Bits = Codes_;
  static constexpr int kGroup = kGroup_;
  static constexpr bool kOffset = true;
  struct Numbers {
    std::uint32_t scales[2];
    __device__ Numbers(const std::uint8_t* header, int row, int half, const FormatArguments&) {
      const std::uint8_t* from = header + row * kScales * 2 + half * kScales / 2 * 2;
      scales[0] = kScales == 4 ? load<std::uint32_t>(from) : load<std::uint16_t>(from);
    }
    __device__ float scale(int g) const { return half_in(scales, g) * kStep; }
    __device__ float offset(int g) const { return half_in(scales, g) * -kLess; }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    for (int i = 0; i < kScales; ++i) {
      copy(to + (r * kScales + i) * 2, at(source.template block<Block>(i), kScaleAt), 2);
    }
  }
};
struct CodesTQ1_0 : FewScales<TQ1_0, Planes<2, 0, false>, 1, 52, 1, 1, 128> {};
struct CodesTQ2_0 : FewScales<TQ2_0, Planes<2, 0, false>, 1, 64, 1, 1, 128> {};
struct CodesQ2_0 : FewScales<Q2_0, Planes<2, 0, false>, 4, 0, 1, 1, 64> {};
struct CodesQ1_0 : FewScales<Q1_0, Planes<1, 0, false>, 2, 0, 2, 1, 128> {};

// --- Micro-scaling -------------------------------------------------------------------------------

struct CodesMXFP4 : BlockFormat<MXFP4, kTileRows * 8> {
  using Bits = E2m1;
  static constexpr float kFactor = 0x1p14f;
  struct Numbers {
    std::uint32_t exponents;
    __device__ Numbers(const std::uint8_t* header, int row, int half, const FormatArguments&)
        : exponents(load<std::uint32_t>(header + row * 8 + half * 4)) {}
    __device__ float scale(int g) const {
      const std::uint32_t bits = (g == 3 ? exponents >> 1 : exponents << (23 - g * 8)) & 0x7f800000;
      return __uint_as_float(max(bits, 0x00400000u));  // 2^(code − 127), also of code 0
    }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    for (int i = 0; i < 8; ++i) copy(to + r * 8 + i, source.block<MXFP4>(i), 1);
  }
};

struct CodesNVFP4 : BlockFormat<NVFP4, kTileRows * 16> {
  using Bits = E2m1;
  static constexpr int kGroup = 16;
  static constexpr float kFactor = 0x1p22f;
  struct Numbers {
    std::uint32_t scales[2];
    __device__ Numbers(const std::uint8_t* header, int row, int half, const FormatArguments&) {
      const uint2 u = load<uint2>(header + row * 16 + half * 8);
      scales[0] = u.x, scales[1] = u.y;
    }
    __device__ float scale(int g) const {
      // E4M3's bits at their places in a half are the number by 2⁻⁸.
      const std::uint32_t word = scales[g / 4];
      const std::uint32_t halves = (g % 2 == 0 ? word << 7 : word >> 1) & 0x3f803f80;
      return g % 4 < 2 ? low_half(halves) : high_half(halves);
    }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    for (int i = 0; i < 4; ++i) copy(to + r * 16 + 4 * i, source.block<NVFP4>(i), 4);
    for (int i = 0; i < 16; ++i) {
      std::uint8_t& code = to[r * 16 + i];
      if ((code & 127) == 127) code = 0;  // not a number, which GGUF takes for none
    }
  }
};

// --- Scales apart: MLX, GPTQ, AWQ, compressed-tensors --------------------------------------------

// A word for each group: a half or bfloat16, and another of these (MLX) or the zero point, a half.
template <int kUpper, int kLower, bool kZeroPoints>
struct GroupPairs : Usual {
  using Bits = Planes<kUpper, kLower, false>;
  static constexpr bool kOffset = true;
  static __host__ __device__ int header_bytes(const FormatArguments& format) {
    return kTileRows * 4 * static_cast<int>(format.tile_groups);
  }
  struct Numbers {
    const std::uint8_t* pairs;
    int first;
    std::uint32_t shift;
    bool wide;
    __device__ Numbers(const std::uint8_t* header, int row, int half, const FormatArguments& format)
        : pairs(header + row * 4 * format.tile_groups),
          first(half * (Usual::kUnits * 2)),
          shift(format.group_shift),
          wide(format.scale_type == 1) {}
    __device__ std::uint32_t pair(int g) const {
      return load<std::uint32_t>(pairs + ((first + g) >> shift) * 4);
    }
    __device__ float number(std::uint32_t bits) const {
      return wide ? __uint_as_float(bits << 16) : low_half(bits);
    }
    __device__ float scale(int g) const { return number(pair(g)); }
    __device__ float offset(int g) const {
      const std::uint32_t word = pair(g);
      if constexpr (kZeroPoints) {
        return number(word) * -high_half(word);
      } else {
        return number(word >> 16);
      }
    }
  };
  template <typename Pair>
  static __device__ void fill_header(std::uint8_t* to, int r, const SourceRow& source,
                                     const FormatArguments& format, const Pair& pair) {
    for (std::uint32_t i = 0; i < format.tile_groups; ++i) {
      const std::uint32_t col = source.first + (i << format.group_shift) * 32;
      std::uint32_t word = 0;
      if (source.row < source.weights.rows && col < source.weights.cols) word = pair(col);
      *reinterpret_cast<std::uint32_t*>(to + (r * format.tile_groups + i) * 4) = word;
    }
  }
};

// The 16 bits that a scale was read from.
__device__ inline std::uint32_t bits16(const FormatArguments& format, float value) {
  return format.scale_type == 1 ? __float_as_uint(value) >> 16
                                : __half_as_ushort(__float2half_rn(value));
}

template <int kUpper, int kLower>
struct CodesMlx : GroupPairs<kUpper, kLower, false> {
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments& format) {
    const Weights& w = source.weights;
    CodesMlx::fill_header(to, r, source, format, [&](std::uint32_t col) {
      const MlxGroup group = MlxAffine::group(w, mlx_group(w, source.row, col));
      return bits16(format, group.scale) | bits16(format, group.bias) << 16;
    });
  }
  template <typename>
  static __device__ std::uint32_t code_of(const Weights& w, std::uint32_t row, std::uint32_t col) {
    return row < w.rows && col < w.cols ? mlx_code(w, row, col) : 0;
  }
};

// The three that keep 4-bit integers.
template <typename Stored>
struct CodesInt4 : GroupPairs<4, 0, true> {
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments& format) {
    const Weights& w = source.weights;
    CodesInt4::fill_header(to, r, source, format, [&](std::uint32_t col) {
      const std::uint32_t group = int4_group(w, col);
      return bits16(format, Stored::scale(w, source.row, group)) |
             static_cast<std::uint32_t>(__half_as_ushort(
                 __float2half_rn(static_cast<float>(Stored::zero(w, source.row, group)))))
                 << 16;
    });
  }
  template <typename>
  static __device__ std::uint32_t code_of(const Weights& w, std::uint32_t row, std::uint32_t col) {
    return row < w.rows && col < w.cols ? Stored::code(w, row, col) : 0;
  }
};

// Every format: entry(ending of the names of its portable kernels, bits of a code where formats of
// several widths share that name and keep their scales apart, how it is read).
// clang-format off
#define ESPALIER_CODES_FORMATS(entry)              \
  entry(q4_0, 0, CodesQ4_0)                       \
  entry(q4_1, 0, CodesQ4_1)                       \
  entry(q5_0, 0, CodesQ5_0)                       \
  entry(q5_1, 0, CodesQ5_1)                       \
  entry(q8_0, 0, CodesQ8_0)                       \
  entry(q2_k, 0, CodesQ2_K)                       \
  entry(q3_k, 0, CodesQ3_K)                       \
  entry(q4_k, 0, CodesQ4_K)                       \
  entry(q5_k, 0, CodesQ5_K)                       \
  entry(q6_k, 0, CodesQ6_K)                       \
  entry(q8_k, 0, CodesQ8_K)                       \
  entry(q1_0, 0, CodesQ1_0)                       \
  entry(q2_0, 0, CodesQ2_0)                       \
  entry(tq1_0, 0, CodesTQ1_0)                     \
  entry(tq2_0, 0, CodesTQ2_0)                     \
  entry(mxfp4, 0, CodesMXFP4)                     \
  entry(nvfp4, 0, CodesNVFP4)                     \
  entry(iq4_nl, 0, CodesIQ4_NL)                   \
  entry(iq4_xs, 0, CodesIQ4_XS)                   \
  entry(mlx_affine, 1, CodesMlx<1, 0>)            \
  entry(mlx_affine, 2, CodesMlx<2, 0>)            \
  entry(mlx_affine, 3, CodesMlx<2, 1>)            \
  entry(mlx_affine, 4, CodesMlx<4, 0>)            \
  entry(mlx_affine, 5, CodesMlx<4, 1>)            \
  entry(mlx_affine, 6, CodesMlx<4, 2>)            \
  entry(mlx_affine, 8, CodesMlx<8, 0>)            \
  entry(gptq_v1, 4, CodesInt4<Gptq<0x11111111u>>) \
  entry(gptq_v2, 4, CodesInt4<Gptq<0>>)           \
  entry(awq, 4, CodesInt4<Awq>)                   \
  entry(ct_int4, 4, CodesInt4<CompressedInt4>)
// clang-format on

}  // namespace espalier::gpu::cuda::codes
