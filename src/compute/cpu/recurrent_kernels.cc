// The inner loops of gated delta nets: see recurrent.h.
#include "compute/cpu/recurrent.h"
#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/recurrent_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "compute/cpu/sigmoid-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

constexpr std::size_t kLanes = HWY_LANES(float);
using compute::DeltaRule;
constexpr std::size_t kTile = DeltaRule::kTile;
constexpr std::size_t kChunk = DeltaRule::kChunk;
static_assert(kChunk == kTile, "a chunk's keys are laid out as a tile");

HWY_INLINE VF silu(VF x) { return times_sigmoid(x, x); }

// kLanes channels.
HWY_INLINE void convolve_vector(const float* x, const float* weight, std::size_t kernel,
                                std::size_t channels, float* before, float* y) {
  const DF d;
  const std::size_t past = kernel - 1;
  const VF input = hn::LoadU(d, x);
  VF sum = hn::Zero(d);
  for (std::size_t j = 0; j < past; ++j) {
    float* earlier = before + j * channels;
    sum = hn::MulAdd(hn::LoadU(d, weight + j * channels), hn::LoadU(d, earlier), sum);
    hn::StoreU(j + 1 < past ? hn::LoadU(d, earlier + channels) : input, d, earlier);
  }
  sum = hn::MulAdd(hn::LoadU(d, weight + past * channels), input, sum);
  hn::StoreU(silu(sum), d, y);
}

void convolve(const float* x, const float* weight, std::size_t kernel, std::size_t channels,
              std::size_t count, float* before, float* y) {
  std::size_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    convolve_vector(x + c, weight + c, kernel, channels, before + c, y + c);
  }
  for (; c < count; ++c) {
    // One channel at a time in lanes of its own, through the same arithmetic.
    HWY_ALIGN float lanes[kLanes] = {};
    const DF d;
    VF sum = hn::Zero(d);
    for (std::size_t j = 0; j + 1 < kernel; ++j) {
      float* earlier = before + j * channels + c;
      sum = hn::MulAdd(hn::Set(d, weight[j * channels + c]), hn::Set(d, *earlier), sum);
      *earlier = j + 2 < kernel ? earlier[channels] : x[c];
    }
    sum = hn::MulAdd(hn::Set(d, weight[(kernel - 1) * channels + c]), hn::Set(d, x[c]), sum);
    hn::Store(silu(sum), d, lanes);
    y[c] = lanes[0];
  }
}

// Tiles that are worked on together, and rows: their sums and one row of the tiles fill the
// registers without spilling, and are as many as hide the latency of an addition.
constexpr std::size_t kTileVectors = kTile / kLanes;
constexpr std::size_t kGroupTiles = kTileVectors < 4 ? 4 / kTileVectors : 1;
constexpr std::size_t kBlock = kLanes >= 16 || HWY_ARCH_ARM ? 4 : 2;

// A row of kTiles tiles.
template <std::size_t kTiles>
struct Columns {
  static constexpr std::size_t kVectors = kTiles * kTileVectors;

  // Tiles lie `stride` floats apart, in memory that may be unaligned.
  static HWY_INLINE Columns load(const float* from, std::size_t stride) {
    const DF d;
    Columns columns;
    ESPALIER_UNROLL
    for (std::size_t i = 0; i < kVectors; ++i) {
      columns.v[i] = hn::LoadU(d, from + i / kTileVectors * stride + i % kTileVectors * kLanes);
    }
    return columns;
  }
  HWY_INLINE void store(float* to, std::size_t stride) const {
    const DF d;
    ESPALIER_UNROLL
    for (std::size_t i = 0; i < kVectors; ++i) {
      hn::StoreU(v[i], d, to + i / kTileVectors * stride + i % kTileVectors * kLanes);
    }
  }
  HWY_INLINE void multiply(VF factor) {
    ESPALIER_UNROLL
    for (VF& element : v) element = hn::Mul(factor, element);
  }
  HWY_INLINE void add_product(VF factor, const Columns& columns) {
    ESPALIER_UNROLL
    for (std::size_t i = 0; i < kVectors; ++i) v[i] = hn::MulAdd(factor, columns.v[i], v[i]);
  }
  HWY_INLINE void subtract_product(VF factor, const Columns& columns) {
    ESPALIER_UNROLL
    for (std::size_t i = 0; i < kVectors; ++i) v[i] = hn::NegMulAdd(factor, columns.v[i], v[i]);
  }

  VF v[kVectors];
};

// to[r] = Σ_k rows[r][k] · matrix[k] for kRows rows and kTiles tiles of a matrix
// [tiles][key_dim][kTile]; `to` is [kRows][kTiles · kTile].
template <std::size_t kRows, std::size_t kTiles>
HWY_INLINE void multiply_rows(const float* const* rows, const float* matrix, std::size_t key_dim,
                              float* to) {
  const DF d;
  Columns<kTiles> sums[kRows];
  ESPALIER_UNROLL
  for (auto& sum : sums) {
    ESPALIER_UNROLL
    for (VF& element : sum.v) element = hn::Zero(d);
  }
  for (std::size_t k = 0; k < key_dim; ++k) {
    const auto columns = Columns<kTiles>::load(matrix + k * kTile, key_dim * kTile);
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) sums[r].add_product(hn::Set(d, rows[r][k]), columns);
  }
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) sums[r].store(to + r * kTiles * kTile, kTile);
}

// The keys and queries of a step's rows in turn, times kTiles tiles of a matrix.
template <std::size_t kTiles>
void multiply_all(const DeltaStep& step, const float* matrix, float* to) {
  const float* rows[2 * kChunk];
  for (std::size_t i = 0; i < step.count; ++i) {
    rows[2 * i] = step.keys + i * step.key_stride;
    rows[2 * i + 1] = step.queries + i * step.key_stride;
  }
  std::size_t r = 0;
  for (; r + kBlock <= 2 * step.count; r += kBlock) {
    multiply_rows<kBlock, kTiles>(rows + r, matrix, step.key_dim, to + r * kTiles * kTile);
  }
  for (; r < 2 * step.count; r += 2) {
    multiply_rows<2, kTiles>(rows + r, matrix, step.key_dim, to + r * kTiles * kTile);
  }
}

// What a step's row i takes of the chunk's row j, and of the matrix.
struct Weights {
  HWY_ALIGN float change[kChunk][kChunk];  // for what it writes
  HWY_ALIGN float read[kChunk][kChunk];
  float change_matrix[kChunk];
  float read_matrix[kChunk];
};

// Takes the step's keys into the chunk and computes the weights of its rows.
void weigh(const DeltaStep& step, Weights& weights) {
  const DF d;
  const DeltaRule::Chunk& chunk = step.chunk;
  if (step.offset == 0) {
    std::fill_n(chunk.decays, kChunk, 0.0f);
    *chunk.matrix_decay = 1;
  }
  for (std::size_t i = 0; i < step.count; ++i) {
    const float* key = step.keys + i * step.key_stride;
    for (std::size_t k = 0; k < step.key_dim; ++k) {
      chunk.keys[k * kChunk + step.offset + i] = key[k];
    }
  }
  // Columns of later rows hold anything; their weights are not used.
  HWY_ALIGN float products[2 * kChunk][kChunk];
  multiply_all<1>(step, chunk.keys, products[0]);

  const VF scale = hn::Set(d, step.scale);
  constexpr float kLeast = 0x1p-100f;  // subnormal numbers would be slow, and add nothing
  for (std::size_t i = 0; i < step.count; ++i) {
    const VF keep = hn::Set(d, step.keep[i]);
    const VF write = hn::Set(d, step.write[i]);
    for (std::size_t j = 0; j < kChunk; j += kLanes) {
      const VF decay = hn::Mul(keep, hn::LoadU(d, chunk.decays + j));
      hn::StoreU(hn::IfThenElseZero(hn::Ge(decay, hn::Set(d, kLeast)), decay), d, chunk.decays + j);
    }
    chunk.decays[step.offset + i] = 1;
    const float matrix_decay = step.keep[i] * *chunk.matrix_decay;
    *chunk.matrix_decay = matrix_decay >= kLeast ? matrix_decay : 0;
    weights.change_matrix[i] = step.write[i] * *chunk.matrix_decay;
    weights.read_matrix[i] = step.scale * *chunk.matrix_decay;
    for (std::size_t j = 0; j < kChunk; j += kLanes) {
      const VF decay = hn::LoadU(d, chunk.decays + j);
      hn::Store(hn::Mul(hn::Mul(write, decay), hn::Load(d, products[2 * i] + j)), d,
                weights.change[i] + j);
      hn::Store(hn::Mul(hn::Mul(scale, decay), hn::Load(d, products[2 * i + 1] + j)), d,
                weights.read[i] + j);
    }
  }
}

// matrix = its decay · matrix + Σ_j decay[j] · key[j] · change[j] for kTiles tiles.
template <std::size_t kTiles>
void end_chunk(const DeltaStep& step, const float* changes, float* matrix) {
  const DF d;
  const VF matrix_decay = hn::Set(d, *step.chunk.matrix_decay);
  const std::size_t stride = step.key_dim * kTile;
  // Of keys k to k + kRows.
  const auto update = [&](std::size_t k, auto rows) HWY_ATTR {
    constexpr std::size_t kRows = decltype(rows)::value;
    HWY_ALIGN float keys[kRows][kChunk];
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t j = 0; j < kChunk; j += kLanes) {
        hn::Store(hn::Mul(hn::LoadU(d, step.chunk.decays + j),
                          hn::LoadU(d, step.chunk.keys + (k + r) * kChunk + j)),
                  d, keys[r] + j);
      }
    }
    Columns<kTiles> sums[kRows];
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      sums[r] = Columns<kTiles>::load(matrix + (k + r) * kTile, stride);
      sums[r].multiply(matrix_decay);
    }
    for (std::size_t j = 0; j < kChunk; ++j) {
      const auto change = Columns<kTiles>::load(changes + j * kTile, kChunk * kTile);
      ESPALIER_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) sums[r].add_product(hn::Set(d, keys[r][j]), change);
    }
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) sums[r].store(matrix + (k + r) * kTile, stride);
  };
  std::size_t k = 0;
  for (; k + kBlock <= step.key_dim; k += kBlock) {
    update(k, std::integral_constant<std::size_t, kBlock>());
  }
  for (; k < step.key_dim; ++k) update(k, std::integral_constant<std::size_t, 1>());
}

// The columns of kTiles tiles from `tile` on.
template <std::size_t kTiles>
void advance_tiles(const DeltaStep& step, const Weights& weights, std::size_t tile) {
  constexpr std::size_t kWidth = kTiles * kTile;
  const DF d;
  float* matrix = step.matrix + tile * step.key_dim * kTile;
  float* changes = step.chunk.changes + tile * kChunk * kTile;
  const std::size_t columns = std::min(kWidth, step.value_dim - tile * kTile);

  HWY_ALIGN float products[2 * kChunk * kWidth];
  multiply_all<kTiles>(step, matrix, products);
  for (std::size_t i = 0; i < step.count; ++i) {
    HWY_ALIGN float buffer[kWidth] = {};
    std::memcpy(buffer, step.values + i * step.value_stride + tile * kTile,
                columns * sizeof(float));
    auto change = Columns<kTiles>::load(buffer, kTile);
    change.multiply(hn::Set(d, step.write[i]));
    change.subtract_product(hn::Set(d, weights.change_matrix[i]),
                            Columns<kTiles>::load(products + 2 * i * kWidth, kTile));
    auto read = Columns<kTiles>::load(products + (2 * i + 1) * kWidth, kTile);
    read.multiply(hn::Set(d, weights.read_matrix[i]));
    const std::size_t at = step.offset + i;
    for (std::size_t j = 0; j < at; ++j) {
      const auto earlier = Columns<kTiles>::load(changes + j * kTile, kChunk * kTile);
      change.subtract_product(hn::Set(d, weights.change[i][j]), earlier);
      read.add_product(hn::Set(d, weights.read[i][j]), earlier);
    }
    change.store(changes + at * kTile, kChunk * kTile);
    read.add_product(hn::Set(d, weights.read[i][at]), change);
    read.store(buffer, kTile);
    std::memcpy(step.y + i * step.value_stride + tile * kTile, buffer, columns * sizeof(float));
  }
  if (step.offset + step.count == kChunk) end_chunk<kTiles>(step, changes, matrix);
}

void delta(const DeltaStep& step) {
  Weights weights;
  weigh(step, weights);
  const std::size_t tiles = (step.value_dim + kTile - 1) / kTile;
  std::size_t tile = 0;
  for (; tile + kGroupTiles <= tiles; tile += kGroupTiles) {
    advance_tiles<kGroupTiles>(step, weights, tile);
  }
  for (; tile < tiles; ++tile) advance_tiles<1>(step, weights, tile);
}

constexpr RecurrentKernels kRecurrentKernels = {.convolve = convolve, .delta = delta};

const RecurrentKernels* get_recurrent_kernels() { return &kRecurrentKernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_recurrent_kernels);

const RecurrentKernels& recurrent_kernels() {
  return *HWY_DYNAMIC_DISPATCH(get_recurrent_kernels)();
}

}  // namespace espalier::cpu
#endif
