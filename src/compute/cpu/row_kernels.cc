#include "compute/cpu/row_kernels.h"

#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/row_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "compute/cpu/sigmoid-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

constexpr std::size_t kLanes = HWY_LANES(float);

// What a norm is taken of, by vectors and, where they do not fit, by elements: a row as it is; a
// sum, which is kept in x; the same with y normed before.
struct Stored {
  const float* x;
  HWY_INLINE VF vector(std::size_t i) const { return hn::LoadU(DF(), x + i); }
  float element(std::size_t i) const { return x[i]; }
};

struct Sum {
  const float* y;
  float* x;
  HWY_INLINE VF vector(std::size_t i) const {
    const VF sum = hn::Add(hn::LoadU(DF(), x + i), hn::LoadU(DF(), y + i));
    hn::StoreU(sum, DF(), x + i);
    return sum;
  }
  float element(std::size_t i) const { return x[i] += y[i]; }
};

struct SumWithNorm {
  const float* y;
  float factor;
  const float* weight;
  float* x;
  HWY_INLINE VF vector(std::size_t i) const {
    const VF scaled = hn::Mul(hn::LoadU(DF(), y + i), hn::Set(DF(), factor));
    const VF normed = hn::Mul(scaled, hn::LoadU(DF(), weight + i));
    const VF sum = hn::Add(hn::LoadU(DF(), x + i), normed);
    hn::StoreU(sum, DF(), x + i);
    return sum;
  }
  float element(std::size_t i) const { return x[i] += y[i] * factor * weight[i]; }
};

// 1 / √(mean of squares + epsilon)
template <typename Values>
float rms_factor(const Values& values, std::size_t width, float epsilon) {
  const DF d;
  VF squares = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const VF v = values.vector(i);
    squares = hn::MulAdd(v, v, squares);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, squares));
  for (; i < width; ++i) {
    const double v = values.element(i);
    sum += v * v;
  }
  return static_cast<float>(1 / std::sqrt(sum / static_cast<double>(width) + epsilon));
}

// y = x · factor ∘ weight
void scale_row(const float* x, float factor, const float* weight, std::size_t width, float* y) {
  const DF d;
  const VF factors = hn::Set(d, factor);
  std::size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const VF v = hn::Mul(hn::LoadU(d, x + i), factors);
    hn::StoreU(hn::Mul(v, hn::LoadU(d, weight + i)), d, y + i);
  }
  for (; i < width; ++i) y[i] = x[i] * factor * weight[i];
}

void rms_norm(const float* x, const float* weight, std::size_t width, float epsilon, float* y) {
  scale_row(x, rms_factor(Stored{x}, width, epsilon), weight, width, y);
}

void add_rms_norm(const float* y, const float* post, const float* weight, std::size_t width,
                  float epsilon, float* x, float* normed) {
  float factor;
  if (post == nullptr) {
    factor = rms_factor(Sum{y, x}, width, epsilon);
  } else {
    const float y_factor = rms_factor(Stored{y}, width, epsilon);
    factor = rms_factor(SumWithNorm{y, y_factor, post, x}, width, epsilon);
  }
  scale_row(x, factor, weight, width, normed);
}

void rope_halves(const float* cosines, const float* sines, std::size_t pairs, float* head) {
  const DF d;
  std::size_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const VF cosine = hn::LoadU(d, cosines + i);
    const VF sine = hn::LoadU(d, sines + i);
    const VF a = hn::LoadU(d, head + i);
    const VF b = hn::LoadU(d, head + pairs + i);
    hn::StoreU(hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)), d, head + i);
    hn::StoreU(hn::Add(hn::Mul(a, sine), hn::Mul(b, cosine)), d, head + pairs + i);
  }
  for (; i < pairs; ++i) {
    const float a = head[i];
    const float b = head[pairs + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[pairs + i] = a * sines[i] + b * cosines[i];
  }
}

void rope_interleaved(const float* cosines, const float* sines, std::size_t pairs, float* head) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const DF d;
  for (; i + kLanes <= pairs; i += kLanes) {
    const VF cosine = hn::LoadU(d, cosines + i);
    const VF sine = hn::LoadU(d, sines + i);
    VF a;
    VF b;
    hn::LoadInterleaved2(d, head + 2 * i, a, b);
    hn::StoreInterleaved2(hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)),
                          hn::Add(hn::Mul(a, sine), hn::Mul(b, cosine)), d, head + 2 * i);
  }
#endif
  for (; i < pairs; ++i) {
    const float a = head[2 * i];
    const float b = head[2 * i + 1];
    head[2 * i] = a * cosines[i] - b * sines[i];
    head[2 * i + 1] = a * sines[i] + b * cosines[i];
  }
}

struct Silu {
  HWY_INLINE VF operator()(VF x) const { return times_sigmoid(x, x); }
};

// x/2 · (1 + tanh(u)) is x · sigmoid(2u).
struct GeluTanh {
  HWY_INLINE VF operator()(VF x) const {
    const DF d;
    const VF cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.044715f), hn::Set(d, 1.0f));
    return times_sigmoid(x, hn::Mul(hn::Mul(x, cubic), hn::Set(d, 1.5957691216f)));  // 2√(2/π)
  }
};

struct Sigmoid {
  HWY_INLINE VF operator()(VF x) const { return times_sigmoid(hn::Set(DF(), 1.0f), x); }
};

struct Softcap {
  float cap;
  HWY_INLINE VF operator()(VF x) const {
    const DF d;
    return hn::Mul(hn::Set(d, cap), hn::Tanh(d, hn::Div(x, hn::Set(d, cap))));
  }
};

// y = function(x). The last few go through the same vectors, so that an element's bits do not
// depend on its place.
template <typename Function>
void apply(const Function& function, const float* x, std::size_t count, float* y) {
  const DF d;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(function(hn::LoadU(d, x + i)), d, y + i);
  if (i == count) return;
  HWY_ALIGN float rest[kLanes] = {};
  std::memcpy(rest, x + i, (count - i) * sizeof(float));
  hn::Store(function(hn::Load(d, rest)), d, rest);
  std::memcpy(y + i, rest, (count - i) * sizeof(float));
}

struct ClampedSwiglu {
  HWY_INLINE VF operator()(VF x) const {
    const DF d;
    const VF clamped = hn::Min(x, hn::Set(d, 7.0f));
    return times_sigmoid(clamped, hn::Mul(clamped, hn::Set(d, 1.702f)));
  }
};

template <typename Function>
void gate(const float* x, const float* up, std::size_t count, float* y) {
  const DF d;
  const Function function;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Mul(function(hn::LoadU(d, x + i)), hn::LoadU(d, up + i)), d, y + i);
  }
  if (i == count) return;
  HWY_ALIGN float rest[kLanes];
  apply(function, x + i, count - i, rest);
  for (std::size_t l = 0; i < count; ++i, ++l) y[i] = rest[l] * up[i];
}

// The other factors are held within ±7, and 1 is added.
void clamped_swiglu_gate(const float* x, const float* up, std::size_t count, float* y) {
  constexpr std::size_t kBlock = 64;
  float factors[kBlock];
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t size = std::min(kBlock, count - first);
    for (std::size_t i = 0; i < size; ++i) {
      factors[i] = std::clamp(up[first + i], -7.0f, 7.0f) + 1;
    }
    gate<ClampedSwiglu>(x + first, factors, size, y + first);
  }
}

void softcap(float cap, std::size_t count, float* x) { apply(Softcap{cap}, x, count, x); }

void add(const float* x, std::size_t count, float* y) {
  const DF d;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i);
  }
  for (; i < count; ++i) y[i] += x[i];
}

void add_scaled(float factor, const float* x, std::size_t count, float* y) {
  const DF d;
  const VF factors = hn::Set(d, factor);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    // Two roundings, like the elements that fill no vector.
    const VF scaled = hn::Mul(factors, hn::LoadU(d, x + i));
    hn::StoreU(hn::Add(hn::LoadU(d, y + i), scaled), d, y + i);
  }
  for (; i < count; ++i) y[i] += factor * x[i];
}

constexpr RowKernels kRowKernels = {.rms_norm = rms_norm,
                                    .add_rms_norm = add_rms_norm,
                                    .rope_halves = rope_halves,
                                    .rope_interleaved = rope_interleaved,
                                    .silu_gate = gate<Silu>,
                                    .gelu_tanh_gate = gate<GeluTanh>,
                                    .sigmoid_gate = gate<Sigmoid>,
                                    .clamped_swiglu_gate = clamped_swiglu_gate,
                                    .add = add,
                                    .add_scaled = add_scaled,
                                    .softcap = softcap};

const RowKernels* get_row_kernels() { return &kRowKernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_row_kernels);

const RowKernels& row_kernels() { return *HWY_DYNAMIC_DISPATCH(get_row_kernels)(); }

}  // namespace espalier::cpu
#endif
