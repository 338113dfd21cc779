#include "compute/cpu/row_kernels.h"

#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/row_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

constexpr std::size_t kLanes = HWY_LANES(float);

void rms_norm(const float* x, const float* weight, std::size_t width, float epsilon, float* y) {
  const DF d;
  VF squares = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const VF v = hn::LoadU(d, x + i);
    squares = hn::MulAdd(v, v, squares);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, squares));
  for (; i < width; ++i) sum += static_cast<double>(x[i]) * x[i];
  const auto factor = static_cast<float>(1 / std::sqrt(sum / static_cast<double>(width) + epsilon));

  const VF factors = hn::Set(d, factor);
  for (i = 0; i + kLanes <= width; i += kLanes) {
    const VF v = hn::Mul(hn::LoadU(d, x + i), factors);
    hn::StoreU(hn::Mul(v, hn::LoadU(d, weight + i)), d, y + i);
  }
  for (; i < width; ++i) y[i] = x[i] * factor * weight[i];
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

HWY_INLINE VF silu(VF x) {
  const DF d;
  // Beyond 2^127 the exponential would overflow; the quotient is below 1e-36 there.
  const VF exponent = hn::Min(hn::Neg(x), hn::Set(d, 88.0f));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, exponent)));
}

void silu_gate(const float* x, const float* up, std::size_t count, float* y) {
  const DF d;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Mul(silu(hn::LoadU(d, x + i)), hn::LoadU(d, up + i)), d, y + i);
  }
  if (i == count) return;
  // The rest goes through the same exponential, so that an element's bits do not depend on its
  // place.
  HWY_ALIGN float rest[kLanes] = {};
  std::memcpy(rest, x + i, (count - i) * sizeof(float));
  hn::Store(silu(hn::Load(d, rest)), d, rest);
  for (std::size_t l = 0; i < count; ++i, ++l) y[i] = rest[l] * up[i];
}

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

void narrow_half(const float* from, std::size_t count, std::byte* to) {
  std::size_t i = 0;
#if HWY_TARGET <= HWY_AVX2  // has the instruction; without it, the scalar conversion is as fast
  const DF d;
  const hn::Rebind<hwy::float16_t, DF> halves;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::DemoteTo(halves, hn::LoadU(d, from + i)), halves,
               reinterpret_cast<hwy::float16_t*>(to) + i);
  }
#endif
  for (; i < count; ++i) {
    const std::uint16_t half = float_to_half(from[i]);
    std::memcpy(to + i * sizeof(half), &half, sizeof(half));
  }
}

constexpr RowKernels kRowKernels = {.rms_norm = rms_norm,
                                    .rope_halves = rope_halves,
                                    .rope_interleaved = rope_interleaved,
                                    .silu_gate = silu_gate,
                                    .add = add,
                                    .add_scaled = add_scaled,
                                    .narrow_half = narrow_half};

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
