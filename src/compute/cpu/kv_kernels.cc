#include "compute/cpu/kv_kernels.h"

#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/kv_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "compute/cpu/row_lanes-inl.h"
#include "compute/kv_codec.h"
#include "pack/legacy_quants.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

using compute::kKvBlock;
using compute::KvType;

// One vector's butterflies of elements `stride` lanes apart.
#if HWY_TARGET != HWY_SCALAR
HWY_INLINE VF butterflies(VF x, std::size_t stride) {
  const DF d;
  HWY_ALIGN std::int32_t other[kLanes];
  HWY_ALIGN float sign[kLanes];
  for (std::size_t l = 0; l < kLanes; ++l) {
    other[l] = static_cast<std::int32_t>(l ^ stride);
    sign[l] = (l & stride) == 0 ? 1.0f : -1.0f;
  }
  return hn::Add(hn::TableLookupLanes(x, hn::SetTableIndices(d, other)),
                 hn::Mul(x, hn::Load(d, sign)));
}
#endif

void rotate(std::size_t size, float* x) {
  const DF d;
#if HWY_TARGET != HWY_SCALAR
  for (std::size_t i = 0; i < size; i += kLanes) {
    VF v = hn::LoadU(d, x + i);
    ESPALIER_UNROLL
    for (std::size_t stride = 1; stride < kLanes; stride *= 2) v = butterflies(v, stride);
    hn::StoreU(v, d, x + i);
  }
#endif
  for (std::size_t stride = kLanes; stride < size; stride *= 2) {
    for (std::size_t i = 0; i < size; i += kLanes) {
      if ((i & stride) != 0) continue;
      const VF a = hn::LoadU(d, x + i);
      const VF b = hn::LoadU(d, x + i + stride);
      hn::StoreU(hn::Add(a, b), d, x + i);
      hn::StoreU(hn::Sub(a, b), d, x + i + stride);
    }
  }
  const VF scale = hn::Set(d, static_cast<float>(1 / std::sqrt(static_cast<double>(size))));
  for (std::size_t i = 0; i < size; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), scale), d, x + i);
  }
}

// Least and largest of a block. Where it holds a NaN, both are.
struct Range {
  float least;
  float most;
};

HWY_INLINE Range range_of(const float* x) {
  const DF d;
  VF least = hn::LoadU(d, x);
  VF most = least;
  auto numbers = hn::Eq(least, least);
  for (std::size_t i = kLanes; i < kKvBlock; i += kLanes) {
    const VF v = hn::LoadU(d, x + i);
    least = hn::Min(least, v);
    most = hn::Max(most, v);
    numbers = hn::And(numbers, hn::Eq(v, v));
  }
  if (!hn::AllTrue(d, numbers)) return {NAN, NAN};
  return {hn::GetLane(hn::MinOfLanes(d, least)), hn::GetLane(hn::MaxOfLanes(d, most))};
}

// The scale as a block holds it, and its inverse; NaN where it cannot.
struct Scale {
  std::uint16_t half;
  float inverse;
};

HWY_INLINE Scale scale_of(float scale) {
  const std::uint16_t half = float_to_half(scale);
  if ((half & 0x7c00) == 0x7c00) return {0x7e00, 0};
  return {half, std::abs(scale) < 0x1p-126f ? 0 : 1 / scale};
}

void encode_q8(const float* x, std::byte* to) {
  const DF d;
  const auto [least, most] = range_of(x);
  const Scale scale = scale_of(std::max(std::abs(least), std::abs(most)) / 127);
  pack::BlockQ8_0 block{.scale = scale.half, .codes = {}};
  if (scale.inverse != 0) {
    HWY_ALIGN std::int32_t codes[kKvBlock];
    for (std::size_t i = 0; i < kKvBlock; i += kLanes) {
      const VF scaled = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, scale.inverse));
      hn::Store(hn::NearestInt(scaled), DI(), codes + i);
    }
    for (std::size_t i = 0; i < kKvBlock; ++i) block.codes[i] = static_cast<std::int8_t>(codes[i]);
  }
  std::memcpy(to, &block, sizeof(block));
}

void encode_q4(const float* x, std::byte* to) {
  const DF d;
  const auto [least, most] = range_of(x);
  const Scale scale = scale_of((most >= -least ? most : least) / -8 + 0.0f);
  pack::BlockQ4_0 block{.scale = scale.half, .codes = {}};
  if ((scale.half & 0x7c00) != 0x7c00) {
    HWY_ALIGN std::int32_t codes[kKvBlock];
    for (std::size_t i = 0; i < kKvBlock; i += kLanes) {
      const VF scaled = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, scale.inverse));
      const VF shifted = hn::Min(hn::Set(d, 15.0f), hn::Add(scaled, hn::Set(d, 8.5f)));
      hn::Store(hn::ConvertTo(DI(), shifted), DI(), codes + i);
    }
    for (std::size_t i = 0; i < 16; ++i) {
      block.codes[i] = static_cast<std::uint8_t>(codes[i] | codes[i + 16] << 4);
    }
  }
  std::memcpy(to, &block, sizeof(block));
}

void encode_f16(const float* x, std::size_t head_dim, std::byte* to) {
  std::size_t i = 0;
#if HWY_TARGET <= HWY_AVX2  // has the instruction; without it, the scalar conversion is as fast
  const DF d;
  const hn::Rebind<hwy::float16_t, DF> halves;
  for (; i + kLanes <= head_dim; i += kLanes) {
    hn::StoreU(hn::DemoteTo(halves, hn::LoadU(d, x + i)), halves,
               reinterpret_cast<hwy::float16_t*>(to) + i);
  }
#endif
  for (; i < head_dim; ++i) {
    const std::uint16_t half = float_to_half(x[i]);
    std::memcpy(to + i * sizeof(half), &half, sizeof(half));
  }
}

// The compiler makes vectors of it.
void encode_bf16(const float* x, std::size_t head_dim, std::byte* to) {
  for (std::size_t i = 0; i < head_dim; ++i) {
    const std::uint16_t bits = float_to_bfloat(x[i]);
    std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
  }
}

// In pieces that are turned by themselves.
void encode_blocks(KvType type, const float* x, std::size_t head_dim, std::byte* to) {
  const std::size_t rotation = compute::kv_rotation(type, head_dim);
  const std::size_t piece = std::max(rotation, kKvBlock);
  for (std::size_t i = 0; i < head_dim; i += piece) {
    HWY_ALIGN float values[compute::kMostKvRotation] = {};
    std::copy_n(x + i, std::min(piece, head_dim - i), values);
    if (rotation != 0) rotate(rotation, values);
    for (std::size_t b = 0; b < piece; b += kKvBlock) {
      (type == KvType::kQ8 ? encode_q8 : encode_q4)(values + b, to);
      to += compute::kv_row_bytes(type, kKvBlock);
    }
  }
}

void encode(KvType type, const float* x, std::size_t head_dim, std::byte* to) {
  switch (type) {
    case KvType::kF32:
      std::memcpy(to, x, head_dim * sizeof(float));
      return;
    case KvType::kF16:
      return encode_f16(x, head_dim, to);
    case KvType::kBF16:
      return encode_bf16(x, head_dim, to);
    case KvType::kQ8:
    case KvType::kQ4:
      return encode_blocks(type, x, head_dim, to);
  }
}

constexpr KvKernels kKvKernels = {.encode = encode, .rotate = rotate};

const KvKernels* get_kv_kernels() { return &kKvKernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_kv_kernels);

const KvKernels& kv_kernels() { return *HWY_DYNAMIC_DISPATCH(get_kv_kernels)(); }

}  // namespace espalier::cpu
#endif
