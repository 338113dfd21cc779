// The inner loops of gated delta nets: see recurrent.h.
#include "compute/cpu/recurrent.h"
#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/recurrent_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <algorithm>
#include <cstring>

#include "compute/cpu/sigmoid-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

constexpr std::size_t kLanes = HWY_LANES(float);
constexpr std::size_t kTile = compute::DeltaRule::kTile;
constexpr std::size_t kVectors = kTile / kLanes;  // of a row of a tile
constexpr std::size_t kPartials =
    std::max<std::size_t>(1, 8 / kVectors);  // hide additions' latency

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

struct Tile {
  VF v[kVectors];
};

HWY_INLINE Tile load_tile(const float* from) {
  const DF d;
  Tile tile;
  ESPALIER_UNROLL
  for (std::size_t v = 0; v < kVectors; ++v) tile.v[v] = hn::LoadU(d, from + v * kLanes);
  return tile;
}

// A sum over the keys, in kPartials interleaved parts.
struct Sums {
  Tile part[kPartials];

  HWY_INLINE Sums() {
    ESPALIER_UNROLL
    for (Tile& tile : part) {
      ESPALIER_UNROLL
      for (VF& sum : tile.v) sum = hn::Zero(DF());
    }
  }
  HWY_INLINE VF total(std::size_t v) const {
    VF sum = part[0].v[v];
    ESPALIER_UNROLL
    for (std::size_t p = 1; p < kPartials; ++p) sum = hn::Add(sum, part[p].v[v]);
    return sum;
  }
};

// body(k, part) for all keys, the parts in turn.
template <typename Body>
HWY_INLINE void for_keys(std::size_t key_dim, const Body& body) {
  std::size_t k = 0;
  for (; k + kPartials <= key_dim; k += kPartials) {
    ESPALIER_UNROLL
    for (std::size_t p = 0; p < kPartials; ++p) body(k + p, p);
  }
  for (; k < key_dim; ++k) body(k, 0);
}

void delta(const DeltaStep& step, float* tile, float* y) {
  const DF d;
  Sums held;
  for_keys(step.key_dim, [&](std::size_t k, std::size_t part) HWY_ATTR {
    const VF key = hn::Set(d, step.key[k]);
    const Tile row = load_tile(tile + k * kTile);
    ESPALIER_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) {
      held.part[part].v[v] = hn::MulAdd(key, row.v[v], held.part[part].v[v]);
    }
  });

  HWY_ALIGN float buffer[kTile] = {};
  std::memcpy(buffer, step.value, step.columns * sizeof(float));
  Tile change = load_tile(buffer);
  const VF keep = hn::Set(d, step.keep);
  ESPALIER_UNROLL
  for (std::size_t v = 0; v < kVectors; ++v) {
    change.v[v] = hn::Mul(hn::Set(d, step.write), hn::NegMulAdd(keep, held.total(v), change.v[v]));
  }

  Sums read;
  for_keys(step.key_dim, [&](std::size_t k, std::size_t part) HWY_ATTR {
    const VF key = hn::Set(d, step.key[k]);
    const VF query = hn::Set(d, step.query[k]);
    const Tile row = load_tile(tile + k * kTile);
    ESPALIER_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) {
      const VF element = hn::MulAdd(key, change.v[v], hn::Mul(keep, row.v[v]));
      hn::StoreU(element, d, tile + k * kTile + v * kLanes);
      read.part[part].v[v] = hn::MulAdd(query, element, read.part[part].v[v]);
    }
  });
  ESPALIER_UNROLL
  for (std::size_t v = 0; v < kVectors; ++v) {
    hn::Store(hn::Mul(hn::Set(d, step.scale), read.total(v)), d, buffer + v * kLanes);
  }
  std::memcpy(y, buffer, step.columns * sizeof(float));
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
