// Formats as the kernels of codes.cu read them: integer codes of at most 8 bits, and for each group
// of inputs a scale and perhaps an offset: weight = scale · code + offset.
//
// A tile is 16 outputs by some units of 128 inputs. A lane of the warp that multiplies it holds
// codes in registers as m16n8k32 wants them: register r of 16 a unit has four codes, of output
// lane / 4 + 8 · (r % 2) and of consecutive inputs from 32 · (r / 4) + 16 · (r / 2 % 2) +
// 4 · (lane % 4) on. Codes are at the top of their bytes, with zeros below: so fields of a few bits
// come out of a word by one shift and one mask, signs extend by themselves, and the scale takes the
// power of two back.
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
__device__ inline float half_in(const std::uint32_t (&words)[4], int i) {
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

// Codes in one plane, or in two of which the first has the upper bits.
template <int kUpper_, int kLower_, bool kSigned_>
struct Planes {
  static constexpr int kUpper = kUpper_;
  static constexpr int kLower = kLower_;
  static constexpr bool kSigned = kSigned_;
  static constexpr bool kTable = false;
  static constexpr int kBits = kUpper + kLower;
  static constexpr float kFactor = 1.0f / (1 << (8 - kBits));  // undoes the place in the byte
  // Formats of less than a byte store signed codes with their sign bit the other way round.
  static constexpr std::uint32_t kFlip = kSigned && kBits < 8 ? 1u << (kBits - 1) : 0;

  // The upper bits of each byte, and the lower ones below them.
  static constexpr std::uint32_t kUpperMask = (0xff00u >> kUpper & 0xff) * 0x01010101u;
  static constexpr std::uint32_t kLowerMask = ((0xff00u >> kLower & 0xff) >> kUpper) * 0x01010101u;

  template <int kWidth>
  static __device__ std::uint32_t word(const std::uint8_t* plane, int lane, int r) {
    const int word = r * kWidth / 8;
    return load<std::uint32_t>(plane + word / 4 * 512 + lane * 16 + word % 4 * 4);
  }

  // Four registers of a step of 32 inputs.
  static __device__ void read(std::uint32_t (&a)[4], const std::uint8_t* tile, int lane, int step,
                              int units) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = 4 * step + i;
      const int up = kUpper * (r % (8 / kUpper));
      a[i] = word<kUpper>(tile, lane, r) << up & kUpperMask;
      if constexpr (kLower != 0) {
        const std::uint32_t lower = word<kLower>(tile + units * kUnit * 2 * kUpper, lane, r);
        const int shift = kLower * (r % (8 / kLower)) - kUpper;
        a[i] |= (shift >= 0 ? lower << shift : lower >> -shift) & kLowerMask;
      }
    }
  }

  // Which bits of code c of a register a plane has, and where in its word.
  struct Place {
    std::uint32_t bits;
    int shift;
  };
  static __device__ Place place(std::uint32_t code, bool lower, int sub, int c) {
    const int width = lower ? kLower : kUpper;
    const std::uint32_t bits = lower ? code & ((1u << kLower) - 1) : code >> kLower;
    return {bits & ((1u << width) - 1), 8 * c + 8 - width * (sub + 1)};
  }
};

// Codes of four bits that are places in a table of 16 signed bytes.
template <std::uint32_t k0, std::uint32_t k1, std::uint32_t k2, std::uint32_t k3>
struct Table {
  static constexpr int kUpper = 4;
  static constexpr int kLower = 0;
  static constexpr bool kSigned = true;
  static constexpr bool kTable = true;
  static constexpr int kBits = 4;
  static constexpr float kFactor = 1;
  static constexpr std::uint32_t kFlip = 0;

  // A permutation takes its places from four nibbles side by side.
  static __device__ void read(std::uint32_t (&a)[4], const std::uint8_t* tile, int lane, int step,
                              int) {
    const uint2 words = load<uint2>(tile + step / 2 * 512 + lane * 16 + step % 2 * 8);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t word = j == 0 ? words.x : words.y;
      const std::uint32_t places = word & 0x77777777;
      const std::uint32_t halves = (word >> 1 & 0x44444444) | 0x32103210;
      a[2 * j] = __byte_perm(__byte_perm(k0, k1, places), __byte_perm(k2, k3, places), halves);
      a[2 * j + 1] = __byte_perm(__byte_perm(k0, k1, places >> 16),
                                 __byte_perm(k2, k3, places >> 16), halves >> 16);
    }
  }

  struct Place {
    std::uint32_t bits;
    int shift;
  };
  static __device__ Place place(std::uint32_t code, bool, int sub, int c) {
    return {code, 16 * sub + 4 * c};
  }
};

using Iq4Levels = Table<0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u>;
using DoubledE2m1 = Table<0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu>;

// What formats have unless they say otherwise: two units a tile, groups of 32, no offset.
struct Usual {
  static constexpr int kUnits = 2;
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

  struct Row {
    std::uint32_t scales[4], offsets[4];
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments&) {
      read(scales, header + row * kRowBytes);
      if constexpr (kOffsets) read(offsets, header + (kTileRows + row) * kRowBytes);
    }
    static __device__ void read(std::uint32_t (&to)[4], const std::uint8_t* from) {
      const uint2 a = load<uint2>(from);
      to[0] = a.x, to[1] = a.y;
      if constexpr (kUnits == 2) {
        const uint2 b = load<uint2>(from + 8);
        to[2] = b.x, to[3] = b.y;
      }
    }
    __device__ float scale(int group) const { return half_in(scales, group) * Bits::kFactor; }
    __device__ float offset(int group) const { return half_in(offsets, group); }
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

  struct Row {
    std::uint32_t scales[2], minima[2];
    float d, d_above, m, m_above;
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments&) {
      const uint4 u = load<uint4>(header + row * 16);
      d = low_half(u.x) * Bits::kFactor;
      m = -high_half(u.x);
      d_above = -kTwo23 * d;
      m_above = -kTwo23 * m;
      scales[0] = u.y & 0x3f3f3f3f;
      minima[0] = u.z & 0x3f3f3f3f;
      scales[1] = (u.w & 0x0f0f0f0f) | (u.y >> 2 & 0x30303030);
      minima[1] = (u.w >> 4 & 0x0f0f0f0f) | (u.z >> 2 & 0x30303030);
    }
    __device__ float scale(int g) const {
      return fmaf(d, byte_above(scales[g / 4], g % 4), d_above);
    }
    __device__ float offset(int g) const {
      return fmaf(m, byte_above(minima[g / 4], g % 4), m_above);
    }
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
  struct Row {
    std::uint32_t scales[4];
    float d;
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments&) {
      const uint4 u = load<uint4>(header + row * 16);
      scales[0] = u.x ^ 0x80808080, scales[1] = u.y ^ 0x80808080;
      scales[2] = u.z ^ 0x80808080, scales[3] = u.w ^ 0x80808080;
      d = low_half(load<std::uint16_t>(header + kTileRows * 16 + row * 2)) * Bits::kFactor;
    }
    __device__ float scale(int g) const {
      return (byte_above(scales[g / 4], g % 4) - (kTwo23 + 128)) * d;
    }
    __device__ float offset(int) const { return 0; }
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
  struct Row {
    std::uint32_t scales[4];
    float d;
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments&) {
      const std::uint8_t* from = header + row * 12;
      const auto u0 = load<std::uint32_t>(from);
      const auto u1 = load<std::uint32_t>(from + 4);
      const auto u2 = load<std::uint32_t>(from + 8);
      scales[0] = (u0 & 0x0f0f0f0f) | (u2 << 4 & 0x30303030);
      scales[1] = (u1 & 0x0f0f0f0f) | (u2 << 2 & 0x30303030);
      scales[2] = (u0 >> 4 & 0x0f0f0f0f) | (u2 & 0x30303030);
      scales[3] = (u1 >> 4 & 0x0f0f0f0f) | (u2 >> 2 & 0x30303030);
      d = low_half(load<std::uint16_t>(header + kTileRows * 12 + row * 2)) * Bits::kFactor;
    }
    __device__ float scale(int g) const {
      return (byte_above(scales[g / 4], g % 4) - (kTwo23 + 32)) * d;
    }
    __device__ float offset(int) const { return 0; }
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
  struct Row {
    std::uint32_t groups[4];
    float d, d_above, m, m_above;
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments&) {
      const uint4 u = load<uint4>(header + row * 16);
      groups[0] = u.x, groups[1] = u.y, groups[2] = u.z, groups[3] = u.w;
      const auto factors = load<std::uint32_t>(header + kTileRows * 16 + row * 4);
      d = low_half(factors) * Bits::kFactor;
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
  struct Row {
    float d;
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments&)
        : d(load<float>(header + row * 4)) {}
    __device__ float scale(int) const { return d; }
    __device__ float offset(int) const { return 0; }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    copy(to + r * 4, source.block<Q8_K>(0), 4);
  }
};

struct CodesIQ4_XS : BlockFormat<IQ4_XS, kTileRows * 8> {
  using Bits = Iq4Levels;
  struct Row {
    std::uint32_t low, high;
    float d;
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments&) {
      const uint2 u = load<uint2>(header + row * 8);
      d = low_half(u.x);
      high = u.x >> 16;
      low = u.y;
    }
    __device__ float scale(int g) const {
      const std::uint32_t code = (low >> (4 * g) & 15) | (high >> (2 * g) & 3) << 4;
      return (__uint_as_float(0x4b000000 | code) - (kTwo23 + 32)) * d;
    }
    __device__ float offset(int) const { return 0; }
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
  struct Row {
    float d[kScales];
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments&) {
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        d[i] = low_half(load<std::uint16_t>(header + (row * kScales + i) * 2));
      }
    }
    __device__ float at_group(int g) const { return d[g * kGroup / (256 / kScales)]; }
    __device__ float scale(int g) const { return at_group(g) * (kStep * Bits::kFactor); }
    __device__ float offset(int g) const { return at_group(g) * -kLess; }
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

// Half of 2^(code − 127).
__device__ inline float half_power(std::uint32_t code) {
  return __uint_as_float(code < 2 ? 0x00200000u << code : (code - 1) << 23);
}

struct CodesMXFP4 : BlockFormat<MXFP4, kTileRows * 8> {
  using Bits = DoubledE2m1;
  struct Row {
    uint2 exponents;
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments&)
        : exponents(load<uint2>(header + row * 8)) {}
    __device__ float scale(int g) const {
      return half_power((g < 4 ? exponents.x : exponents.y) >> (g % 4 * 8) & 255);
    }
    __device__ float offset(int) const { return 0; }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    for (int i = 0; i < 8; ++i) copy(to + r * 8 + i, source.block<MXFP4>(i), 1);
  }
};

struct CodesNVFP4 : BlockFormat<NVFP4, kTileRows * 16> {
  using Bits = DoubledE2m1;
  static constexpr int kGroup = 16;
  struct Row {
    std::uint32_t scales[4];
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments&) {
      const uint4 u = load<uint4>(header + row * 16);
      scales[0] = u.x, scales[1] = u.y, scales[2] = u.z, scales[3] = u.w;
    }
    __device__ float scale(int g) const {
      const std::uint32_t code = scales[g / 4] >> (g % 4 * 8) & 127;
      return code == 127 ? 0 : __uint_as_float(code << 20) * 0x1p119f;  // half of the E4M3
    }
    __device__ float offset(int) const { return 0; }
  };
  static __device__ void header(std::uint8_t* to, int r, const SourceRow& source,
                                const FormatArguments&) {
    for (int i = 0; i < 4; ++i) copy(to + r * 16 + 4 * i, source.block<NVFP4>(i), 4);
  }
};

// --- Scales apart: MLX, GPTQ, AWQ, compressed-tensors --------------------------------------------

// A word for each group: a half or bfloat16, and another of these (MLX) or the zero point.
template <int kUpper, int kLower, bool kZeroPoints>
struct GroupPairs : Usual {
  using Bits = Planes<kUpper, kLower, false>;
  static constexpr bool kOffset = true;
  static __host__ __device__ int header_bytes(const FormatArguments& format) {
    return kTileRows * 4 * static_cast<int>(format.tile_groups);
  }
  struct Row {
    const std::uint8_t* pairs;
    std::uint32_t shift;
    bool wide;
    __device__ Row(const std::uint8_t* header, int row, const FormatArguments& format)
        : pairs(header + row * 4 * format.tile_groups),
          shift(format.group_shift),
          wide(format.scale_type == 1) {}
    __device__ std::uint32_t pair(int g) const {
      return load<std::uint32_t>(pairs + (g >> shift) * 4);
    }
    __device__ float number(std::uint32_t bits) const {
      return wide ? __uint_as_float(bits << 16) : low_half(bits);
    }
    __device__ float scale(int g) const { return number(pair(g)) * Bits::kFactor; }
    __device__ float offset(int g) const {
      const std::uint32_t word = pair(g);
      if constexpr (kZeroPoints) {
        return number(word) * -static_cast<float>(word >> 16);
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
             Stored::zero(w, source.row, group) << 16;
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
