#include "compute/cpu/float_kernels.h"

#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/float_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include "base/bytes.h"
#include "base/half.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// kRows × kOutputs products at once: each load of x serves kOutputs of them, of w kRows.
template <std::size_t kRows, std::size_t kOutputs>
HWY_INLINE void multiply_tile(const float* x, const float* w, std::size_t inputs, float* y,
                              std::size_t y_stride) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  VF sums[kRows][kOutputs];
  ESPALIER_UNROLL
  for (auto& row : sums) {
    ESPALIER_UNROLL
    for (VF& sum : row) sum = hn::Zero(d);
  }
  std::size_t i = 0;
  for (; i + lanes <= inputs; i += lanes) {
    VF weights[kOutputs];
    ESPALIER_UNROLL
    for (std::size_t o = 0; o < kOutputs; ++o) weights[o] = hn::LoadU(d, w + o * inputs + i);
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      const VF activations = hn::LoadU(d, x + r * inputs + i);
      ESPALIER_UNROLL
      for (std::size_t o = 0; o < kOutputs; ++o) {
        sums[r][o] = hn::MulAdd(weights[o], activations, sums[r][o]);
      }
    }
  }
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) {
    ESPALIER_UNROLL
    for (std::size_t o = 0; o < kOutputs; ++o) {
      float sum = hn::GetLane(hn::SumOfLanes(d, sums[r][o]));
      for (std::size_t t = i; t < inputs; ++t) sum += x[r * inputs + t] * w[o * inputs + t];
      y[r * y_stride + o] = sum;
    }
  }
}

template <std::size_t kRows>
HWY_INLINE void multiply_rows(const float* x, const float* w, std::size_t outputs,
                              std::size_t inputs, float* y, std::size_t y_stride) {
  std::size_t o = 0;
  for (; o + 4 <= outputs; o += 4) {
    multiply_tile<kRows, 4>(x, w + o * inputs, inputs, y + o, y_stride);
  }
  for (; o < outputs; ++o) multiply_tile<kRows, 1>(x, w + o * inputs, inputs, y + o, y_stride);
}

void multiply(const float* x, std::size_t rows, const float* w, std::size_t outputs,
              std::size_t inputs, float* y, std::size_t y_stride) {
  constexpr std::size_t kRows = HWY_TARGET <= HWY_AVX3 ? 4 : 2;  // what the registers hold
  std::size_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    multiply_rows<kRows>(x + r * inputs, w, outputs, inputs, y + r * y_stride, y_stride);
  }
  for (; r < rows; ++r) {
    multiply_rows<1>(x + r * inputs, w, outputs, inputs, y + r * y_stride, y_stride);
  }
}

// `vector` widens a vector of raw 16-bit numbers, `scalar` one of them.
template <typename WidenVector, typename WidenScalar>
HWY_INLINE void widen(const std::byte* from, std::size_t count, float* to, WidenVector vector,
                      WidenScalar scalar) {
  const DF d;
  const hn::Rebind<std::uint16_t, DF> d16;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from) + i);
    hn::StoreU(vector(bits), d, to + i);
  }
  for (; i < count; ++i) to[i] = scalar(load<std::uint16_t>(from + i * 2));
}

void widen_half(const std::byte* from, std::size_t count, float* to) {
  const hn::Rebind<hwy::float16_t, DF> halves;
  widen(
      from, count, to, [&](auto bits) { return hn::PromoteTo(DF(), hn::BitCast(halves, bits)); },
      half_to_float);
}

void widen_bfloat(const std::byte* from, std::size_t count, float* to) {
  const hn::RebindToUnsigned<DF> words;
  widen(
      from, count, to,
      [&](auto bits) { return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(words, bits))); },
      bfloat_to_float);
}

constexpr FloatKernels kFloatKernels = {
    .multiply = multiply, .widen_half = widen_half, .widen_bfloat = widen_bfloat};

const FloatKernels* get_float_kernels() { return &kFloatKernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_float_kernels);

const FloatKernels& float_kernels() { return *HWY_DYNAMIC_DISPATCH(get_float_kernels)(); }

}  // namespace espalier::cpu
#endif
