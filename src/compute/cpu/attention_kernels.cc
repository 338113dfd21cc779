// The inner loops of attention: see attention.h.
#include "compute/cpu/attention.h"
#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/attention_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "compute/cpu/row_lanes-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

using compute::Attention;
using compute::KvType;
using compute::KvView;

constexpr std::size_t kTileVectors = kTilePositions / kLanes;
static_assert(kTilePositions % kLanes == 0 && kSpanPositions % kTilePositions == 0);

std::size_t padded(std::size_t head_dim) { return (head_dim + 15) / 16 * 16; }

std::size_t scratch(const Attention& attention) {
  return 2 * kTilePositions * padded(attention.head_dim) + kTilePositions;
}

float load_element(const KvView& cache, const std::byte* row, std::size_t i) {
  if (cache.type == KvType::kF32) {
    float value;
    std::memcpy(&value, row + i * sizeof(value), sizeof(value));
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, row + i * sizeof(half), sizeof(half));
  return half_to_float(half);
}

// Keys of `count` positions as floats [head_dim, kTilePositions]; positions past the last repeat
// it.
void load_keys(const KvView& cache, const std::byte* keys, std::size_t count, std::size_t head_dim,
               float* to) {
  const std::size_t row_bytes = cache.head_dim * element_bytes(cache.type);
  const std::size_t word_elements = sizeof(std::uint32_t) / element_bytes(cache.type);
  const DF d;
  for (std::size_t p = 0; p < std::min(kTilePositions, (count + kLanes - 1) / kLanes * kLanes);
       p += kLanes) {
    RowLanes rows;
    for (std::size_t l = 0; l < kLanes; ++l) {
      rows.row[l] =
          reinterpret_cast<const std::uint8_t*>(keys) + std::min(p + l, count - 1) * row_bytes;
    }
    std::size_t i = 0;
    for (; i + 4 * word_elements <= head_dim; i += 4 * word_elements) {
      const FourWords words = load_four_words(rows, i * element_bytes(cache.type));
      float* column = to + i * kTilePositions + p;
      for (std::size_t w = 0; w < 4; ++w) {
        if (cache.type == KvType::kF32) {
          hn::Store(hn::BitCast(d, words.v[w]), d, column + w * kTilePositions);
        } else {
          hn::Store(half_words_to_float(words.v[w]), d, column + 2 * w * kTilePositions);
          hn::Store(half_words_to_float(hn::ShiftRight<16>(words.v[w])), d,
                    column + (2 * w + 1) * kTilePositions);
        }
      }
    }
    for (; i < head_dim; ++i) {
      for (std::size_t l = 0; l < kLanes; ++l) {
        const auto* row = reinterpret_cast<const std::byte*>(rows.row[l]);
        to[i * kTilePositions + p + l] = load_element(cache, row, i);
      }
    }
  }
}

// Values of `count` positions as floats [positions, padded head_dim].
void load_values(const KvView& cache, const std::byte* values, std::size_t count,
                 std::size_t head_dim, float* to) {
  const std::size_t row_bytes = cache.head_dim * element_bytes(cache.type);
  const DF d;
  const hn::Rebind<hwy::float16_t, DF> halves;
  for (std::size_t p = 0; p < count; ++p) {
    const std::byte* row = values + p * row_bytes;
    float* to_row = to + p * padded(head_dim);
    std::size_t i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) {
      if (cache.type == KvType::kF32) {
        hn::Store(hn::LoadU(d, reinterpret_cast<const float*>(row) + i), d, to_row + i);
      } else {
        const auto half = hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(row) + i);
        hn::Store(hn::PromoteTo(d, half), d, to_row + i);
      }
    }
    for (; i < padded(head_dim); ++i) to_row[i] = i < head_dim ? load_element(cache, row, i) : 0;
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
  float* values = keys + kTilePositions * layout.values;
  float* weights = values + kTilePositions * layout.values;

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
    const std::size_t at = cache.index(sequence, block.kv_head, tile) * element_bytes(cache.type);
    load_keys(cache, cache.keys + at, count, head_dim, keys);
    load_values(cache, cache.values + at, count, head_dim, values);
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
