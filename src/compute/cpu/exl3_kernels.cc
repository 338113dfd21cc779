#include "compute/cpu/exl3_kernels.h"

#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/exl3_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "base/half.h"
#include "compute/cpu/row_lanes-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

void hadamard(float* run) {
  const DF d;
  constexpr std::size_t kVectors = kExl3Inputs / kLanes;
  VF v[kVectors];
  for (std::size_t i = 0; i < kVectors; ++i) v[i] = hn::LoadU(d, run + i * kLanes);
#if HWY_TARGET != HWY_SCALAR
  for (std::size_t stride = 1; stride < kLanes; stride *= 2) {
    HWY_ALIGN std::int32_t partner[kLanes];
    HWY_ALIGN float sign[kLanes];
    for (std::size_t l = 0; l < kLanes; ++l) {
      partner[l] = static_cast<std::int32_t>(l ^ stride);
      sign[l] = (l & stride) != 0 ? -1 : 1;
    }
    const auto partners = hn::SetTableIndices(d, partner);
    const VF signs = hn::Load(d, sign);
    for (VF& each : v) each = hn::MulAdd(each, signs, hn::TableLookupLanes(each, partners));
  }
#endif
  for (std::size_t stride = 1; stride < kVectors; stride *= 2) {
    for (std::size_t i = 0; i < kVectors; ++i) {
      if ((i & stride) != 0) continue;
      const VF a = v[i];
      const VF b = v[i + stride];
      v[i] = hn::Add(a, b);
      v[i + stride] = hn::Sub(a, b);
    }
  }
  const VF scale = hn::Set(d, 0.08838834764831845f);  // 1/√128
  for (std::size_t i = 0; i < kVectors; ++i) hn::StoreU(hn::Mul(v[i], scale), d, run + i * kLanes);
}

// How the weights of a tile of 16 inputs × 16 outputs lie in vectors of 16-bit numbers: as tensor
// cores have them, lane l has inputs 2·(l % 4) + {0, 1, 8, 9} of outputs l / 4 and l / 4 + 8.
// Inputs repeat through a vector in patterns.
#if HWY_TARGET == HWY_AVX3_DL
// Vector 2v + h: lanes 8v … 8v + 7 with the outputs of half h. A pattern is all inputs of one.
inline constexpr std::size_t kPatterns = 1;
inline constexpr std::size_t kPattern = 16;
#else
// Four vectors for so many lanes that they are full: the inputs (0 … 3), (4 … 7), … of both halves.
inline constexpr std::size_t kPatterns = 4;
inline constexpr std::size_t kPattern = 8;
#endif
constexpr std::size_t kTileInputs = 16;
constexpr std::size_t kTiles = kExl3Inputs / kTileInputs;  // of a run

// The input of a tile at place i of pattern p.
constexpr std::size_t pattern_input(std::size_t p, std::size_t i) {
  return kPatterns == 1 ? i / 4 * 2 + i % 2 + i % 4 / 2 * 8 : 4 * p + i / 4 * 2 + i % 2;
}

void encode(const float* x, Exl3Group& group) {
  const DF d;
  const hn::Rebind<std::int16_t, DF> d16;
  VF largest = hn::Zero(d);
  for (std::size_t i = 0; i < kExl3Inputs; i += kLanes) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
  }
  const float magnitude = hn::GetLane(hn::MaxOfLanes(d, largest));
  constexpr float kSmallest = 0x1p-100f;
  group.scale = magnitude < kSmallest ? 0 : magnitude / kMost16Bits;
  const VF inverse = hn::Set(d, magnitude < kSmallest ? 0 : kMost16Bits / magnitude);
  HWY_ALIGN std::int16_t codes[kExl3Inputs];
  VI sums = hn::Zero(DI());
  for (std::size_t i = 0; i < kExl3Inputs; i += kLanes) {
    const VI code = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
    sums = hn::Add(sums, code);
    hn::StoreU(hn::DemoteTo(d16, code), d16, codes + i);
  }
  group.sum = group.scale * static_cast<float>(hn::GetLane(hn::SumOfLanes(DI(), sums)));
  std::fill_n(group.offsets, std::size(group.offsets), 0);
  std::int16_t* to = group.codes;
  for (std::size_t t = 0; t < kTiles; ++t) {
    for (std::size_t p = 0; p < kPatterns; ++p) {
      for (std::size_t i = 0; i < kPattern; ++i) {
        *to = codes[t * kTileInputs + pattern_input(p, i)];
        group.offsets[i / 2] -= kMul1Zero * *to++;
      }
    }
  }
}

#if HWY_TARGET == HWY_SCALAR

void multiply(const Exl3Tiles&, std::size_t, const Exl3Rows&, float*, float*, std::size_t) {}

#else

using DU16 = hn::ScalableTag<std::uint16_t>;
using VU16 = hn::Vec<DU16>;

// The sum of the two bytes of every 16-bit number.
HWY_INLINE VU16 sum_bytes(VU16 words) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  return VU16{_mm512_maddubs_epi16(words.raw, _mm512_set1_epi8(1))};
#elif HWY_TARGET == HWY_AVX2
  return VU16{_mm256_maddubs_epi16(words.raw, _mm256_set1_epi8(1))};
#elif HWY_TARGET == HWY_SSE4
  return VU16{_mm_maddubs_epi16(words.raw, _mm_set1_epi8(1))};
#else
  return hn::Add(hn::And(words, hn::Set(DU16(), 0xff)), hn::ShiftRight<8>(words));
#endif
}

// sum + a·b over the two 16-bit numbers of each lane; a is not negative.
HWY_INLINE VI dot_pairs(VI sum, VU16 a, VU16 b) {
#if HWY_TARGET == HWY_AVX3_DL
  return VI{_mm512_dpwssd_epi32(sum.raw, a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX3
  return hn::Add(sum, VI{_mm512_madd_epi16(a.raw, b.raw)});
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(sum, VI{_mm256_madd_epi16(a.raw, b.raw)});
#elif HWY_TARGET == HWY_SSE4
  return hn::Add(sum, VI{_mm_madd_epi16(a.raw, b.raw)});
#else
  const VI wide_a = hn::BitCast(DI(), a);
  const VI wide_b = hn::BitCast(DI(), b);
  const auto lower = [](VI v) HWY_ATTR { return hn::ShiftRight<16>(hn::ShiftLeft<16>(v)); };
  sum = hn::Add(sum, hn::Mul(lower(wide_a), lower(wide_b)));
  return hn::Add(sum, hn::Mul(hn::ShiftRight<16>(wide_a), hn::ShiftRight<16>(wide_b)));
#endif
}

// The upper 16 bits of (high · 2^16 + low) · 2^kBits.
template <int kBits>
HWY_INLINE VU16 shift_in(VU16 high, VU16 low) {
#if HWY_TARGET == HWY_AVX3_DL
  return VU16{_mm512_shldi_epi16(high.raw, low.raw, kBits)};
#else
  return hn::Or(hn::ShiftLeft<kBits>(high), hn::ShiftRight<16 - kBits>(low));
#endif
}

// The byte sums of the products of 16-bit states.
HWY_INLINE VU16 mul1_sums(VU16 states) {
  const DU16 d;
  const VU16 factor = hn::Set(d, 0xd12d);
  const VU16 low = hn::Mul(states, factor);
  const VU16 high = hn::Add(hn::MulHigh(states, factor), hn::Mul(states, hn::Set(d, 0x83dc)));
  return hn::Add(sum_bytes(low), sum_bytes(high));
}

#if HWY_TARGET == HWY_AVX3_DL

// The ring of a tile as one number: the file's words with the last one first, little-endian. The
// state of weight t are its 16 bits from kBits · (255 − t) on; the lowest follow the highest.
//
// One instruction fetches any bytes of 64, another one any eight bits for each byte of 64-bit
// lanes. So a 64-bit lane first gets the bytes with the four weights of an output (of both outputs
// where they are few enough), and then their states.
template <std::size_t kBits>
class Ring {
 public:
  static constexpr std::size_t kVectors = 8;

  // The states of vector i, 2v + h.
  static HWY_INLINE VU16 states(const std::byte* tile, std::size_t i) {
    const Window& window = kWindows.vectors[i];
    __m512i bytes;
    if constexpr (kBytes < 64) {
      bytes = _mm512_maskz_loadu_epi8((std::uint64_t{1} << kBytes) - 1, tile);
    } else {
      bytes = _mm512_loadu_si512(tile + window.first);
    }
    if (window.wraps) {
      std::int32_t last;
      std::memcpy(&last, tile + kBytes - sizeof(last), sizeof(last));
      bytes = _mm512_mask_set1_epi32(bytes, 1 << 15, last);
    }
    bytes = _mm512_permutexvar_epi8(_mm512_load_si512(window.bytes), bytes);
    const auto* shifts = kWindows.shifts[i % 2];
    return VU16{_mm512_multishift_epi64_epi8(
        _mm512_set1_epi64(load<std::int64_t>(reinterpret_cast<const std::byte*>(shifts))), bytes)};
  }

 private:
  static constexpr std::size_t kBytes = 32 * kBits;

  // Which 64 bytes of a tile have the bits of a vector, and where.
  struct Window {
    alignas(64) std::uint8_t bytes[64];
    std::size_t first;
    bool wraps;  // the tile's last word is needed too, in place of the window's
  };
  struct Windows {
    Window vectors[kVectors];
    std::uint8_t shifts[2][8];  // of the bytes of a lane, for either half
  };

  static constexpr Windows make_windows() {
    Windows made = {};
    for (std::size_t half = 0; half < 2; ++half) {
      // Both halves from the same bytes where eight states fit into 64 bits.
      const std::size_t skip = half == 0 && 7 * kBits + 16 > 64 ? kBits / 2 : 0;
      for (std::size_t b = 0; b < 8; ++b) {
        made.shifts[half][b] =
            static_cast<std::uint8_t>(kBits * (7 - 4 * half - b / 2) - 8 * skip + b % 2 * 8);
      }
      for (std::size_t v = 0; v < 4; ++v) {
        Window& window = made.vectors[2 * v + half];
        // Byte i of the number is byte 3 − i % 4 … of words counted from the end.
        const auto in_file = [](std::size_t i) { return kBytes - 4 - i % kBytes / 4 * 4 + i % 4; };
        const std::size_t most = kBits * (31 - 8 * v) + skip + 7;
        window.first = most >= kBytes ? 0 : in_file(most) / 4 * 4;
        if (window.first + 64 > kBytes) window.first = kBytes < 64 ? 0 : kBytes - 64;
        for (std::size_t b = 0; b < 64; ++b) {
          const std::size_t from = in_file(kBits * (31 - 8 * v - b / 8) + skip + b % 8);
          const bool inside = from >= window.first && from < window.first + 64;
          window.bytes[b] = static_cast<std::uint8_t>(inside ? from - window.first : 60 + from % 4);
          if (!inside && from >= kBytes - 4) window.wraps = true;
        }
      }
    }
    return made;
  }

  static constexpr Windows kWindows = make_windows();
};

// Calls take(i, states) for the vectors of a tile.
template <std::size_t kBits, typename Take>
HWY_INLINE void for_states(const std::byte* tile, Ring<kBits>&, const Take& take) {
  unrolled(std::make_index_sequence<Ring<kBits>::kVectors>(),
           [&](auto i) HWY_ATTR { take(i, Ring<kBits>::states(tile, i)); });
}

#else

constexpr std::size_t kParts = 32 / kLanes;  // vectors that hold one weight each of a tile's lanes

// A tile's ring, its last words first. Then it is one little-endian number whose bits from
// K · (255 − t) on are the state of weight t; the lowest follow the highest.
template <std::size_t kBits>
struct Ring {
  static constexpr std::size_t kWords = 8 * kBits;
  std::uint32_t words[kWords + 1];
  RowLanes lanes[kParts];  // where the states of each tensor-core lane's eight weights begin

  Ring() {
    for (std::size_t l = 0; l < 32; ++l) {
      RowLanes& part = lanes[l / kLanes];
      part.row[l % kLanes] = reinterpret_cast<const std::uint8_t*>(words) + kBits * (31 - l);
      part.offset[l % kLanes] = -static_cast<std::int32_t>(kBits * (l % kLanes));
    }
  }

  void load(const std::byte* tile) {
    for (std::size_t w = 0; w < kWords; ++w) {
      std::memcpy(words + w, tile + (kWords - 1 - w) * sizeof(words[0]), sizeof(words[0]));
    }
    words[kWords] = words[0];
  }

  // The byte from which on a 32-bit word has state `i` counted from a lane's last: the same for as
  // many states as one word has.
  static constexpr std::size_t byte_of(std::size_t i) {
    std::size_t byte = 0;
    for (std::size_t j = 0; j <= i; ++j) {
      if (kBits * j + 16 > 8 * byte + 32) byte = kBits * j / 8;
    }
    return byte;
  }
};

// States c and c + 4 of tensor-core lanes kLanes · part … of a tile, c 0 … 3: those of a lane are
// side by side in states[c], c in the lower half.
template <std::size_t kBits>
HWY_INLINE void load_states(const std::byte* tile, const Ring<kBits>& ring, std::size_t part,
                            VU16 (&states)[4]) {
  const DU d;
  if constexpr (kBits == 4) {
    // A lane's weights end in one word of the ring: no need for gathering. As 16-bit numbers,
    // `high` continues in `low`.
    const DU16 d16;
    const auto* words = reinterpret_cast<const std::uint32_t*>(tile) + part * kLanes;
    const VU word = hn::LoadU(d, words);
    VU before;
    if (part == 0) {
      HWY_ALIGN std::int32_t left[kLanes];
      for (std::size_t l = 0; l < kLanes; ++l)
        left[l] = l == 0 ? 0 : static_cast<std::int32_t>(l) - 1;
      std::uint32_t last;  // the ring is closed
      std::memcpy(&last, words + 31, sizeof(last));
      before = hn::IfThenElse(hn::FirstN(d, 1), hn::Set(d, last),
                              hn::TableLookupLanes(word, hn::SetTableIndices(d, left)));
    } else {
      before = hn::LoadU(d, words - 1);
    }
    const VU16 high = hn::OddEven(hn::BitCast(d16, word), hn::BitCast(d16, before));
    const VU16 low = hn::BitCast(d16, hn::Or(hn::ShiftLeft<16>(word), hn::ShiftRight<16>(word)));
    states[0] = shift_in<4>(high, low);
    states[1] = shift_in<8>(high, low);
    states[2] = shift_in<12>(high, low);
    states[3] = low;
  } else {
    VU last_first[8];
    VU word = hn::Zero(d);
    unrolled(std::make_index_sequence<8>(), [&](auto i) HWY_ATTR {
      constexpr std::size_t kByte = Ring<kBits>::byte_of(i);
      if constexpr (i == 0 || kByte != Ring<kBits>::byte_of(i - 1)) {
        word = load_word(ring.lanes[part], kByte);
      }
      last_first[i] = hn::ShiftRight<kBits * i - 8 * kByte>(word);
    });
    ESPALIER_UNROLL
    for (std::size_t c = 0; c < 4; ++c) {
      const VU upper = hn::ShiftLeft<16>(last_first[3 - c]);
      states[c] =
          hn::BitCast(DU16(), hn::Or(hn::And(last_first[7 - c], hn::Set(d, 0xffff)), upper));
    }
  }
}

// Calls take(i, states) for the vectors of a tile.
template <std::size_t kBits, typename Take>
HWY_INLINE void for_states(const std::byte* tile, Ring<kBits>& ring, const Take& take) {
  const DU16 d;
  if constexpr (kBits != 4) ring.load(tile);
  for (std::size_t part = 0; part < kParts; ++part) {
    VU16 states[4];
    load_states<kBits>(tile, ring, part, states);
    take(4 * part, hn::InterleaveLower(d, states[0], states[1]));
    take(4 * part + 1, hn::InterleaveUpper(d, states[0], states[1]));
    take(4 * part + 2, hn::InterleaveLower(d, states[2], states[3]));
    take(4 * part + 3, hn::InterleaveUpper(d, states[2], states[3]));
  }
}

#endif

// Two halves of a vector of 16-bit numbers as floats.
struct TwoFloats {
  VF v[2];
};

HWY_INLINE TwoFloats halves_to_float(VU16 bits) {
  const hn::Rebind<hwy::float16_t, DF> halves;
  const hn::Half<DU16> half;
  return {{hn::PromoteTo(DF(), hn::BitCast(halves, hn::LowerHalf(half, bits))),
           hn::PromoteTo(DF(), hn::BitCast(halves, hn::UpperHalf(half, bits)))}};
}

// The weights of 3INST and MCG: both halves of state · factor + addend, each with some bits
// replaced, as numbers in half precision, added up.
template <pack::Codebook kCodebook>
HWY_INLINE TwoFloats half_sums(VU16 states) {
  constexpr bool k3Inst = kCodebook == pack::Codebook::k3Inst;
  constexpr std::uint32_t kFactor = k3Inst ? 89226354u : 0xcbac1fedu;
  constexpr std::uint32_t kAddend = k3Inst ? 64248484u : 0;
  const DU16 d;
  const VU16 factor = hn::Set(d, static_cast<std::uint16_t>(kFactor));
  VU16 low = hn::Mul(states, factor);
  VU16 high = hn::Add(hn::MulHigh(states, factor), hn::Mul(states, hn::Set(d, kFactor >> 16)));
  if constexpr (kAddend != 0) {
    const VU16 addend = hn::Set(d, static_cast<std::uint16_t>(kAddend));
    low = hn::Add(low, addend);
    const VU16 carry = hn::IfThenElseZero(hn::Lt(low, addend), hn::Set(d, 1));
    high = hn::Add(high, hn::Add(carry, hn::Set(d, kAddend >> 16)));
  }
  const auto number = [&](VU16 bits) HWY_ATTR {
    return halves_to_float(hn::Xor(hn::And(bits, hn::Set(d, 0x8fff)), hn::Set(d, 0x3b60)));
  };
  const TwoFloats a = number(low);
  const TwoFloats b = number(high);
  return {{hn::Add(a.v[0], b.v[0]), hn::Add(a.v[1], b.v[1])}};
}

// 128 inputs of 16 outputs, [input tile][vector]: byte sums of 16 bits for MUL1, floats for others.
template <std::size_t kBits, pack::Codebook kCodebook>
void unpack(const std::byte* tile, std::size_t stride, float* weights) {
  const DU16 d;
  constexpr std::size_t kTileBytes = 32 * kBits;
  constexpr std::size_t kVectorLanes = 2 * kLanes;
  Ring<kBits> ring;
  for (std::size_t t = 0; t < kTiles; ++t, tile += stride) {
    // The same tile of the next run of inputs.
    const auto next = reinterpret_cast<std::uintptr_t>(tile) + kTiles * stride;
    for (std::size_t line = 0; line < kTileBytes; line += 64) {
      hwy::Prefetch(reinterpret_cast<const void*>(next + line));
    }
    if constexpr (kCodebook == pack::Codebook::kMul1) {
      auto* to = reinterpret_cast<std::uint16_t*>(weights) + t * kTileInputs * kTileInputs;
      for_states<kBits>(tile, ring, [&](std::size_t i, VU16 states) HWY_ATTR {
        hn::Store(mul1_sums(states), d, to + i * kVectorLanes);
      });
    } else {
      float* to = weights + t * kTileInputs * kTileInputs;
      for_states<kBits>(tile, ring, [&](std::size_t i, VU16 states) HWY_ATTR {
        const TwoFloats sums = half_sums<kCodebook>(states);
        hn::Store(sums.v[0], DF(), to + i * kVectorLanes);
        hn::Store(sums.v[1], DF(), to + i * kVectorLanes + kLanes);
      });
    }
  }
}

#if HWY_TARGET == HWY_AVX3_DL
HWY_INLINE VU16 load_pattern(const std::int16_t* codes) {
  return VU16{_mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(codes)))};
}
HWY_INLINE VI load_offsets(const std::int32_t* offsets) {
  return VI{_mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(offsets)))};
}
#else
HWY_INLINE VU16 load_pattern(const std::int16_t* codes) {
  return hn::LoadDup128(DU16(), reinterpret_cast<const std::uint16_t*>(codes));
}
HWY_INLINE VI load_offsets(const std::int32_t* offsets) { return hn::LoadDup128(DI(), offsets); }
#endif

// Sums of a tile's outputs: vectors of pairs of lanes, one pair an input each. Every output is the
// sum of several lanes.
constexpr std::size_t kSums = kTileInputs * kTileInputs / (2 * kLanes) / kPatterns;
constexpr std::size_t kPairs = kTileInputs / kPatterns / 2;  // of an output

// Floats of totals for a tile of outputs.
constexpr std::size_t kTotals = kSums * 2 * kLanes;

// totals[r] += what kRows rows give with the byte sums of 16 outputs and 128 inputs, x being the
// first row's group: a lane for every pair.
template <std::size_t kRows>
HWY_INLINE void multiply_sums(const std::uint16_t* sums, const Exl3Group* x, std::size_t x_stride,
                              float slope, float base, float* totals) {
  const DU16 d;
  const DF df;
  constexpr std::size_t kTileVectors = kSums * kPatterns;
  // Sums that share the loads of activations, as registers allow.
  constexpr std::size_t kTogether = HWY_TARGET <= HWY_AVX3_DL ? 4 : 2;
  for (std::size_t first = 0; first < kSums; first += kTogether) {
    VI dots[kRows][kTogether];
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      ESPALIER_UNROLL
      for (VI& dot : dots[r]) dot = load_offsets(x[r * x_stride].offsets);
    }
    for (std::size_t i = 0; i < kTiles * kPatterns; ++i) {
      const std::size_t vector = i / kPatterns * kTileVectors + first * kPatterns + i % kPatterns;
      VU16 weights[kTogether];
      ESPALIER_UNROLL
      for (std::size_t s = 0; s < kTogether; ++s) {
        weights[s] = hn::Load(d, sums + (vector + s * kPatterns) * hn::Lanes(d));
      }
      ESPALIER_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        const VU16 inputs = load_pattern(x[r * x_stride].codes + i * kPattern);
        ESPALIER_UNROLL
        for (std::size_t s = 0; s < kTogether; ++s) {
          dots[r][s] = dot_pairs(dots[r][s], weights[s], inputs);
        }
      }
    }
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      const Exl3Group& group = x[r * x_stride];
      ESPALIER_UNROLL
      for (std::size_t s = 0; s < kTogether; ++s) {
        float* total = totals + r * kTotals + (first + s) * kLanes;
        VF sum = hn::Load(df, total);
        sum = hn::MulAdd(hn::ConvertTo(df, dots[r][s]), hn::Set(df, slope * group.scale), sum);
        sum = hn::Add(sum, hn::Set(df, base * group.sum / kPairs));
        hn::Store(sum, df, total);
      }
    }
  }
}

// A pattern of inputs of a tile as it repeats through both halves of a vector.
HWY_INLINE VF load_inputs(const float* tile, std::size_t pattern, std::size_t half) {
  const DF d;
  HWY_ALIGN std::int32_t from[kLanes];
  for (std::size_t l = 0; l < kLanes; ++l) {
    const std::size_t input = pattern_input(0, (half * kLanes + l) % kPattern);
    from[l] = static_cast<std::int32_t>(kPatterns == 1 ? input : l / 4 * 4 % kLanes + input);
  }
  const VF inputs = kPatterns == 1 ? hn::LoadU(d, tile) : hn::LoadDup128(d, tile + 4 * pattern);
  return hn::TableLookupLanes(inputs, hn::SetTableIndices(d, from));
}

// The same with weights and activations as floats: a lane for every input.
template <std::size_t kRows>
HWY_INLINE void multiply_floats(const float* weights, const float* x, std::size_t x_stride,
                                float* totals) {
  const DF d;
  constexpr std::size_t kTileVectors = kSums * kPatterns;
  for (std::size_t s = 0; s < kSums; ++s) {
    VF sums[kRows][2];
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      ESPALIER_UNROLL
      for (std::size_t half = 0; half < 2; ++half) {
        sums[r][half] = hn::Load(d, totals + r * kTotals + (2 * s + half) * kLanes);
      }
    }
    for (std::size_t t = 0; t < kTiles; ++t) {
      ESPALIER_UNROLL
      for (std::size_t p = 0; p < kPatterns; ++p) {
        const float* from = weights + (t * kTileVectors + s * kPatterns + p) * 2 * kLanes;
        ESPALIER_UNROLL
        for (std::size_t half = 0; half < 2; ++half) {
          const VF weight = hn::Load(d, from + half * kLanes);
          ESPALIER_UNROLL
          for (std::size_t r = 0; r < kRows; ++r) {
            const VF inputs = load_inputs(x + r * x_stride + t * kTileInputs, p, half);
            sums[r][half] = hn::MulAdd(weight, inputs, sums[r][half]);
          }
        }
      }
    }
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      ESPALIER_UNROLL
      for (std::size_t half = 0; half < 2; ++half) {
        hn::Store(sums[r][half], d, totals + r * kTotals + (2 * s + half) * kLanes);
      }
    }
  }
}

// The lanes of output o, which have kWidth lanes for every pair of inputs, added up.
template <std::size_t kWidth>
float sum_of_output(const float* totals, std::size_t output) {
  const std::size_t low = output % 8;
  const std::size_t half = output / 8;
  float sum = 0;
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    // Where pairs of both halves alternate; where half a vector is of one output.
    const std::size_t at = kPatterns == 1 ? (low / 2 * 2 + half) * kLanes + low % 2 * kPairs + pair
                                          : 4 * low + 2 * pair + half;
    for (std::size_t i = 0; i < kWidth; ++i) sum += totals[at * kWidth + i];
  }
  return sum;
}

using Unpack = void (*)(const std::byte* tile, std::size_t stride, float* weights);

template <pack::Codebook kCodebook>
constexpr Unpack kUnpack[] = {  // by bits per weight
    nullptr,
    unpack<1, kCodebook>,
    unpack<2, kCodebook>,
    unpack<3, kCodebook>,
    unpack<4, kCodebook>,
    unpack<5, kCodebook>,
    unpack<6, kCodebook>,
    unpack<7, kCodebook>,
    unpack<8, kCodebook>};

Unpack find_unpack(const Exl3Tiles& w) {
  if (w.codebook == pack::Codebook::kMul1) return kUnpack<pack::Codebook::kMul1>[w.bits];
  if (w.codebook == pack::Codebook::kMcg) return kUnpack<pack::Codebook::kMcg>[w.bits];
  return kUnpack<pack::Codebook::k3Inst>[w.bits];
}

void multiply(const Exl3Tiles& w, std::size_t output, const Exl3Rows& x, float* scratch, float* y,
              std::size_t y_stride) {
  const Unpack unpack_tiles = find_unpack(w);
  const bool sums = w.codebook == pack::Codebook::kMul1;
  // As in pack::exl3_weight, which adds 1024 to the byte sum.
  const float slope = half_to_float(0x1eee);
  const float base = slope * (1024 + kMul1Zero) + half_to_float(0xc931);
  float* weights = scratch;
  float* totals = scratch + kExl3Inputs * kTileInputs;
  const std::size_t runs = x.inputs / kExl3Inputs;
  const auto multiply_rows = [&](auto rows, std::size_t run, std::size_t r) {
    constexpr std::size_t kRows = decltype(rows)::value;
    float* to = totals + r * kTotals;
    if (sums) {
      multiply_sums<kRows>(reinterpret_cast<const std::uint16_t*>(weights),
                           x.groups + r * runs + run, runs, slope, base, to);
    } else {
      multiply_floats<kRows>(weights, x.values + r * x.inputs + run * kExl3Inputs, x.inputs, to);
    }
  };
  for (std::size_t o = 0; o < kExl3Outputs; o += kTileInputs) {
    std::fill_n(totals, x.rows * kTotals, 0.0f);
    const std::byte* tile = w.tiles + (output + o) / kTileInputs * w.output_stride;
    for (std::size_t run = 0; run < runs; ++run, tile += kTiles * w.input_stride) {
      unpack_tiles(tile, w.input_stride, weights);
      std::size_t r = 0;
      for (; r + 4 <= x.rows; r += 4) {
        multiply_rows(std::integral_constant<std::size_t, 4>(), run, r);
      }
      for (; r < x.rows; ++r) multiply_rows(std::integral_constant<std::size_t, 1>(), run, r);
    }
    for (std::size_t r = 0; r < x.rows; ++r) {
      const float* total = totals + r * kTotals;
      for (std::size_t i = 0; i < kTileInputs; ++i) {
        y[r * y_stride + o + i] = sums ? sum_of_output<1>(total, i) : sum_of_output<2>(total, i);
      }
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

constexpr Exl3Kernels kExl3Kernels = {.vectors = HWY_TARGET != HWY_SCALAR,
                                      .hadamard = hadamard,
                                      .encode = encode,
                                      .multiply = multiply};

const Exl3Kernels* get_exl3_kernels() { return &kExl3Kernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_exl3_kernels);

Exl3Tiles exl3_tiles(const pack::Matrix& w, const std::byte* arranged) {
  const std::size_t bytes = w.format->block_bytes;
  const std::string_view name = w.format->name;
  const bool here = arranged == nullptr;
  return {.tiles = here ? w.data.data() : arranged,
          .input_stride = here ? pack::exl3_padded(w.rows) / 16 * bytes : bytes,
          .output_stride = here ? bytes : pack::exl3_padded(w.cols) / 16 * bytes,
          .bits = static_cast<std::uint32_t>(bytes / 32),
          .codebook = name.starts_with("EXL3-MUL1-")  ? pack::Codebook::kMul1
                      : name.starts_with("EXL3-MCG-") ? pack::Codebook::kMcg
                                                      : pack::Codebook::k3Inst};
}

bool has_exl3_kernel(const pack::Matrix& w) {
  // Weight matrices alone have scales of their inputs.
  return exl3_kernels().vectors && !w.input_scale.empty() && w.format->block_bytes % 32 == 0;
}

const Exl3Kernels& exl3_kernels() { return *HWY_DYNAMIC_DISPATCH(get_exl3_kernels)(); }

}  // namespace espalier::cpu
#endif
