// The inner loops of attention: see attention.h.
#include "compute/cpu/attention.h"
#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/attention_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/bytes.h"
#include "base/half.h"
#include "compute/cpu/row_lanes-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "pack/legacy_quants.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

using compute::Attention;
using compute::KvView;

constexpr std::size_t kTileVectors = kTilePositions / kLanes;
static_assert(kTilePositions % kLanes == 0 && kSpanPositions % kTilePositions == 0);

std::size_t padded(std::size_t head_dim) { return (head_dim + 15) / 16 * 16; }

std::size_t scratch(const Attention& attention) {
  return (2 * padded(attention.head_dim) + 2 * 16) * kTilePositions + kTilePositions;
}

// 32-bit words of rows as columns of floats, kTilePositions apart: words [at, at + 4) bytes · 4 of
// every row. kElements each.
struct F32Words {
  static constexpr std::size_t kElements = 4;
  static float scalar(const std::byte* row, std::size_t i) { return load<float>(row + i * 4); }
  static HWY_INLINE void columns(const FourWords& words, float* to) {
    const DF d;
    for (std::size_t w = 0; w < 4; ++w) {
      hn::Store(hn::BitCast(d, words.v[w]), d, to + w * kTilePositions);
    }
  }
  static HWY_INLINE VF values(const std::byte* row, std::size_t i) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(row) + i);
  }
};

struct F16Words {
  static constexpr std::size_t kElements = 8;
  static float scalar(const std::byte* row, std::size_t i) {
    return half_to_float(load<std::uint16_t>(row + i * 2));
  }
  static HWY_INLINE void columns(const FourWords& words, float* to) {
    const DF d;
    for (std::size_t w = 0; w < 4; ++w) {
      hn::Store(half_words_to_float(words.v[w]), d, to + 2 * w * kTilePositions);
      hn::Store(half_words_to_float(hn::ShiftRight<16>(words.v[w])), d,
                to + (2 * w + 1) * kTilePositions);
    }
  }
  static HWY_INLINE VF values(const std::byte* row, std::size_t i) {
    const hn::Rebind<hwy::float16_t, DF> halves;
    return hn::PromoteTo(DF(), hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(row) + i));
  }
};

struct BF16Words {
  static constexpr std::size_t kElements = 8;
  static float scalar(const std::byte* row, std::size_t i) {
    return bfloat_to_float(load<std::uint16_t>(row + i * 2));
  }
  static HWY_INLINE void columns(const FourWords& words, float* to) {
    const DF d;
    const VU upper = hn::Set(DU(), 0xffff0000);
    for (std::size_t w = 0; w < 4; ++w) {
      hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(words.v[w])), d, to + 2 * w * kTilePositions);
      hn::Store(hn::BitCast(d, hn::And(words.v[w], upper)), d, to + (2 * w + 1) * kTilePositions);
    }
  }
  static HWY_INLINE VF values(const std::byte* row, std::size_t i) {
    const hn::Rebind<std::uint16_t, DU> bits;
    const auto narrow = hn::LoadU(bits, reinterpret_cast<const std::uint16_t*>(row) + i);
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), narrow)));
  }
};

// Element types: keys [first, first + kLanes) of a tile, as columns of it.
template <typename Words>
void load_key_lanes(const RowLanes& rows, std::size_t head_dim, float* to) {
  std::size_t i = 0;
  for (; i + Words::kElements <= head_dim; i += Words::kElements) {
    Words::columns(load_four_words(rows, i / Words::kElements * 16), to + i * kTilePositions);
  }
  for (; i < head_dim; ++i) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      to[i * kTilePositions + l] =
          Words::scalar(reinterpret_cast<const std::byte*>(rows.row[l]), i);
    }
  }
}

template <typename Words>
void load_value_row(const std::byte* row, std::size_t head_dim, float* to) {
  std::size_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) {
    hn::Store(Words::values(row, i), DF(), to + i);
  }
  for (; i < padded(head_dim); ++i) to[i] = i < head_dim ? Words::scalar(row, i) : 0;
}

// Blocks: the same, up to whole ones, so that `to` needs room for them.
void load_q8_keys(const RowLanes& rows, std::size_t head_dim, float* to) {
  using Block = pack::BlockQ8_0;
  const DF d;
  for (std::size_t b = 0; b * Block::kValues < head_dim; ++b) {
    const std::size_t at = b * sizeof(Block);
    const VF scale = load_half<Block>(rows, at, 0);
    for (std::size_t part = 0; part < 2; ++part) {
      const FourWords words = load_four_words(rows, at + offsetof(Block, codes) + part * 16);
      for (std::size_t w = 0; w < 4; ++w) {
        float* column = to + (b * Block::kValues + part * 16 + w * 4) * kTilePositions;
        hn::Store(hn::Mul(scale, signed_byte_to_float<0>(words.v[w])), d, column);
        hn::Store(hn::Mul(scale, signed_byte_to_float<1>(words.v[w])), d, column + kTilePositions);
        hn::Store(hn::Mul(scale, signed_byte_to_float<2>(words.v[w])), d,
                  column + 2 * kTilePositions);
        hn::Store(hn::Mul(scale, signed_byte_to_float<3>(words.v[w])), d,
                  column + 3 * kTilePositions);
      }
    }
  }
}

HWY_INLINE VF q4_value(VF scale, VU code) {
  const VI centered = hn::Sub(hn::BitCast(DI(), code), hn::Set(DI(), 8));
  return hn::Mul(scale, hn::ConvertTo(DF(), centered));
}

void load_q4_keys(const RowLanes& rows, std::size_t head_dim, float* to) {
  using Block = pack::BlockQ4_0;
  const DF d;
  const VU low = hn::Set(DU(), 15);
  for (std::size_t b = 0; b * Block::kValues < head_dim; ++b) {
    const std::size_t at = b * sizeof(Block);
    const VF scale = load_half<Block>(rows, at, 0);
    const FourWords words = load_four_words(rows, at + offsetof(Block, codes));
    for (std::size_t w = 0; w < 4; ++w) {
      float* column = to + (b * Block::kValues + w * 4) * kTilePositions;
      VU codes = words.v[w];
      for (std::size_t i = 0; i < 4; ++i, column += kTilePositions) {
        hn::Store(q4_value(scale, hn::And(codes, low)), d, column);
        codes = hn::ShiftRight<4>(codes);
        hn::Store(q4_value(scale, hn::And(codes, low)), d, column + 16 * kTilePositions);
        codes = hn::ShiftRight<4>(codes);
      }
    }
  }
}

void load_q8_values(const std::byte* row, std::size_t head_dim, float* to) {
  using Block = pack::BlockQ8_0;
  const hn::Rebind<std::int8_t, DF> bytes;
  for (std::size_t i = 0; i < head_dim; i += Block::kValues, row += sizeof(Block)) {
    const VF scale = hn::Set(DF(), half_to_float(load<std::uint16_t>(row)));
    const auto* codes = reinterpret_cast<const std::int8_t*>(row + offsetof(Block, codes));
    for (std::size_t j = 0; j < Block::kValues; j += kLanes) {
      const VI code = hn::PromoteTo(DI(), hn::LoadU(bytes, codes + j));
      hn::StoreU(hn::Mul(scale, hn::ConvertTo(DF(), code)), DF(), to + i + j);
    }
  }
}

void load_q4_values(const std::byte* row, std::size_t head_dim, float* to) {
  using Block = pack::BlockQ4_0;
  const hn::Rebind<std::uint8_t, DF> bytes;
  for (std::size_t i = 0; i < head_dim; i += Block::kValues, row += sizeof(Block)) {
    const VF scale = hn::Set(DF(), half_to_float(load<std::uint16_t>(row)));
    const auto* codes = reinterpret_cast<const std::uint8_t*>(row + offsetof(Block, codes));
    for (std::size_t j = 0; j < 16; j += kLanes) {
      const VU pair = hn::PromoteTo(DU(), hn::LoadU(bytes, codes + j));
      hn::StoreU(q4_value(scale, hn::And(pair, hn::Set(DU(), 15))), DF(), to + i + j);
      hn::StoreU(q4_value(scale, hn::ShiftRight<4>(pair)), DF(), to + i + j + 16);
    }
  }
}

struct Loaders {
  void (*keys)(const RowLanes& rows, std::size_t head_dim, float* to);
  void (*values)(const std::byte* row, std::size_t head_dim, float* to);
};

constexpr Loaders kLoaders[] = {
    // in the order of KvType
    {load_key_lanes<F32Words>, load_value_row<F32Words>},
    {load_key_lanes<F16Words>, load_value_row<F16Words>},
    {load_key_lanes<BF16Words>, load_value_row<BF16Words>},
    {load_q8_keys, load_q8_values},
    {load_q4_keys, load_q4_values},
};

// Keys of `count` positions as floats [head_dim, kTilePositions]; positions past the last repeat
// it.
void load_keys(const KvView& cache, const std::byte* keys, std::size_t count, float* to) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(keys);
  const std::size_t row_bytes = cache.row_bytes();
  for (std::size_t p = 0; p < count; p += kLanes) {
    RowLanes rows;
    for (std::size_t l = 0; l < kLanes; ++l) {
      rows.row[l] = bytes + std::min(p + l, count - 1) * row_bytes;
      rows.offset[l] = static_cast<std::int32_t>(rows.row[l] - rows.row[0]);
    }
    kLoaders[static_cast<std::size_t>(cache.type)].keys(rows, cache.head_dim, to + p);
  }
}

// Values of `count` positions as floats [positions, padded head_dim]. Blocks may write beyond a
// row, to where the next one goes.
void load_values(const KvView& cache, const std::byte* values, std::size_t count, float* to) {
  for (std::size_t p = 0; p < count; ++p) {
    kLoaders[static_cast<std::size_t>(cache.type)].values(
        values + p * cache.row_bytes(), cache.head_dim, to + p * padded(cache.head_dim));
  }
}

// A query against positions [begin, end) of a tile.
HWY_INLINE void attend_tile(const float* query, const float* keys, const float* values,
                            std::size_t begin, std::size_t end, const Attention& attention,
                            float* weights, float* sum) {
  const DF d;
  const std::size_t head_dim = attention.head_dim;
  const PartialSum layout = {padded(head_dim)};

  VF scores[kTileVectors];
  ESPALIER_UNROLL
  for (VF& score : scores) score = hn::Zero(d);
  for (std::size_t i = 0; i < head_dim; ++i) {
    const VF q = hn::Set(d, query[i]);
    ESPALIER_UNROLL
    for (std::size_t v = 0; v < kTileVectors; ++v) {
      scores[v] = hn::MulAdd(q, hn::Load(d, keys + i * kTilePositions + v * kLanes), scores[v]);
    }
  }

  const VF lowest = hn::Set(d, -INFINITY);
  const auto visible = [&](std::size_t v) HWY_ATTR {
    const VF position = hn::Iota(d, static_cast<float>(v * kLanes));
    return hn::And(hn::Ge(position, hn::Set(d, static_cast<float>(begin))),
                   hn::Lt(position, hn::Set(d, static_cast<float>(end))));
  };
  VF highest_lanes = lowest;
  ESPALIER_UNROLL
  for (std::size_t v = 0; v < kTileVectors; ++v) {
    scores[v] = hn::Mul(scores[v], hn::Set(d, attention.scale));
    if (attention.softcap != 0) {
      const VF cap = hn::Set(d, attention.softcap);
      scores[v] = hn::Mul(cap, hn::Tanh(d, hn::Div(scores[v], cap)));
    }
    scores[v] = hn::IfThenElse(visible(v), scores[v], lowest);
    highest_lanes = hn::Max(highest_lanes, scores[v]);
  }
  const float before = sum[layout.highest()];
  const float highest = std::max(before, hn::GetLane(hn::MaxOfLanes(d, highest_lanes)));
  const VF highests = hn::Set(d, highest);
  VF total = hn::Zero(d);
  ESPALIER_UNROLL
  for (std::size_t v = 0; v < kTileVectors; ++v) {
    const VF weight = hn::IfThenElseZero(visible(v), hn::Exp(d, hn::Sub(scores[v], highests)));
    hn::Store(weight, d, weights + v * kLanes);
    total = hn::Add(total, weight);
  }
  const float kept = std::exp(before - highest);
  sum[layout.highest()] = highest;
  sum[layout.weight()] = sum[layout.weight()] * kept + hn::GetLane(hn::SumOfLanes(d, total));

  // `head_dim` in pieces that stay in registers while the positions go by.
  constexpr std::size_t kPiece = 4;
  std::size_t i = 0;
  const auto weigh = [&](auto vectors) HWY_ATTR {
    constexpr std::size_t kVectors = decltype(vectors)::value;
    VF sums[kVectors];
    ESPALIER_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[v] = hn::Mul(hn::Load(d, sum + i + v * kLanes), hn::Set(d, kept));
    }
    for (std::size_t p = begin; p < end; ++p) {
      const VF weight = hn::Set(d, weights[p]);
      ESPALIER_UNROLL
      for (std::size_t v = 0; v < kVectors; ++v) {
        const VF value = hn::Load(d, values + p * layout.values + i + v * kLanes);
        sums[v] = hn::MulAdd(weight, value, sums[v]);
      }
    }
    ESPALIER_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, sum + i + v * kLanes);
    i += kVectors * kLanes;
  };
  while (i + kPiece * kLanes <= layout.values) weigh(std::integral_constant<std::size_t, kPiece>());
  while (i < layout.values) weigh(std::integral_constant<std::size_t, 1>());
}

void attend(const AttentionBlock& block, float* scratch, float* sums) {
  const Attention& attention = block.attention;
  const KvView& cache = block.cache;
  const std::size_t group = attention.heads / attention.kv_heads;
  const std::size_t head_dim = attention.head_dim;
  const PartialSum layout = {padded(head_dim)};
  float* keys = scratch;
  float* values = keys + kTilePositions * (layout.values + 16);  // room for whole blocks
  float* weights = values + kTilePositions * (layout.values + 16);

  // What each row sees of the span, and what any of them sees.
  std::size_t begins[kBlockRows];
  std::size_t ends[kBlockRows];
  const std::size_t span_begin = block.span * kSpanPositions;
  std::size_t first = span_begin + kSpanPositions;
  std::size_t last = span_begin;
  for (std::size_t r = 0; r < block.rows.size(); ++r) {
    const std::size_t end = static_cast<std::size_t>(block.rows[r].position) + 1;
    const std::size_t window = attention.window == 0 ? end : attention.window;
    begins[r] = std::max(end - std::min(end, window), span_begin);
    ends[r] = std::min(end, span_begin + kSpanPositions);
    if (begins[r] < ends[r]) {
      first = std::min(first, begins[r]);
      last = std::max(last, ends[r]);
    }
    for (std::size_t h = 0; h < group; ++h) {
      float* sum = sums + (r * group + h) * layout.size();
      std::fill_n(sum, layout.size(), 0.0f);
      sum[layout.highest()] = -INFINITY;
    }
  }

  const auto sequence = static_cast<std::size_t>(block.rows[0].sequence);
  for (std::size_t tile = first / kTilePositions * kTilePositions; tile < last;
       tile += kTilePositions) {
    const std::size_t count = std::min(kTilePositions, last - tile);
    const std::size_t at = cache.offset(sequence, block.kv_head, tile);
    load_keys(cache, cache.keys + at, count, keys);
    load_values(cache, cache.values + at, count, values);
    for (std::size_t r = 0; r < block.rows.size(); ++r) {
      const std::size_t begin = std::max(begins[r], tile);
      const std::size_t end = std::min(ends[r], tile + count);
      if (begin >= end) continue;
      for (std::size_t h = 0; h < group; ++h) {
        const std::size_t head = r * attention.heads + block.kv_head * group + h;
        attend_tile(block.queries + head * head_dim, keys, values, begin - tile, end - tile,
                    attention, weights, sums + (r * group + h) * layout.size());
      }
    }
  }
}

void merge(PartialSum layout, const float* sum, float* total) {
  const float highest = std::max(total[layout.highest()], sum[layout.highest()]);
  if (highest == -INFINITY) return;  // neither saw a position
  const float keep = std::exp(total[layout.highest()] - highest);
  const float take = std::exp(sum[layout.highest()] - highest);
  const DF d;
  for (std::size_t i = 0; i < layout.values; i += kLanes) {
    const VF kept = hn::Mul(hn::Load(d, total + i), hn::Set(d, keep));
    hn::Store(hn::MulAdd(hn::Load(d, sum + i), hn::Set(d, take), kept), d, total + i);
  }
  total[layout.highest()] = highest;
  total[layout.weight()] = total[layout.weight()] * keep + sum[layout.weight()] * take;
}

constexpr AttentionKernels kAttentionKernels = {
    .scratch = scratch, .attend = attend, .merge = merge};

const AttentionKernels* get_attention_kernels() { return &kAttentionKernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_attention_kernels);

const AttentionKernels& attention_kernels() {
  return *HWY_DYNAMIC_DISPATCH(get_attention_kernels)();
}

}  // namespace espalier::cpu
#endif
