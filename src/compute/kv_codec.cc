#include "compute/kv_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "pack/hadamard.h"
#include "pack/legacy_quants.h"

namespace espalier::compute {
namespace {

constexpr std::uint16_t kNanHalf = 0x7e00;
constexpr std::uint16_t kInfiniteHalf = 0x7c00;

// The inverse of a scale too small for one counts as 0, as the half-precision scale does.
float inverse(float scale) { return std::abs(scale) < 0x1p-126f ? 0 : 1 / scale; }

// Whether a half-precision scale is a finite number.
bool holds(std::uint16_t scale) { return (scale & kInfiniteHalf) != kInfiniteHalf; }

pack::BlockQ8_0 encode_q8(const float* x) {
  pack::BlockQ8_0 block{};
  float largest = 0;
  for (std::size_t i = 0; i < kKvBlock; ++i) largest = std::max(std::abs(x[i]), largest);
  const float scale = largest / 127;
  block.scale = float_to_half(scale);
  if (!holds(block.scale) || std::any_of(x, x + kKvBlock, [](float v) { return v != v; })) {
    return {.scale = kNanHalf, .codes = {}};
  }
  for (std::size_t i = 0; i < kKvBlock; ++i) {
    block.codes[i] = static_cast<std::int8_t>(std::nearbyint(x[i] * inverse(scale)));
  }
  return block;
}

// The value of largest magnitude gets the code −8, the positive one of two.
pack::BlockQ4_0 encode_q4(const float* x) {
  pack::BlockQ4_0 block{};
  const auto [least, most] = std::minmax_element(x, x + kKvBlock);
  const float scale = (*most >= -*least ? *most : *least) / -8 + 0.0f;  // not −0
  block.scale = float_to_half(scale);
  if (!holds(block.scale) || std::any_of(x, x + kKvBlock, [](float v) { return v != v; })) {
    return {.scale = kNanHalf, .codes = {}};
  }
  std::uint8_t codes[kKvBlock];
  for (std::size_t i = 0; i < kKvBlock; ++i) {
    codes[i] = static_cast<std::uint8_t>(std::min(15.0f, x[i] * inverse(scale) + 8.5f));
  }
  pack::store_block_codes(codes, block.codes, nullptr);
  return block;
}

// Whole blocks of x, filled up with zeros.
template <auto kEncode>
void encode_blocks(const float* x, std::size_t head_dim, std::byte* to) {
  for (std::size_t i = 0; i < head_dim; i += kKvBlock) {
    float values[kKvBlock] = {};
    std::copy_n(x + i, std::min(kKvBlock, head_dim - i), values);
    const auto block = kEncode(values);
    std::memcpy(to, &block, sizeof(block));
    to += sizeof(block);
  }
}

template <typename Block>
void decode_blocks(const std::byte* from, std::size_t head_dim, float* x) {
  for (std::size_t i = 0; i < head_dim; i += kKvBlock) {
    float values[kKvBlock];
    load<Block>(from + i / kKvBlock * sizeof(Block)).decode(values);
    std::copy_n(values, std::min(kKvBlock, head_dim - i), x + i);
  }
}

template <auto kConvert>
void encode_16(const float* x, std::size_t head_dim, std::byte* to) {
  for (std::size_t i = 0; i < head_dim; ++i) {
    const std::uint16_t bits = kConvert(x[i]);
    std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
  }
}

template <auto kConvert>
void decode_16(const std::byte* from, std::size_t head_dim, float* x) {
  for (std::size_t i = 0; i < head_dim; ++i) x[i] = kConvert(load<std::uint16_t>(from + 2 * i));
}

void encode_f32(const float* x, std::size_t head_dim, std::byte* to) {
  std::memcpy(to, x, head_dim * sizeof(float));
}

void decode_f32(const std::byte* from, std::size_t head_dim, float* x) {
  std::memcpy(x, from, head_dim * sizeof(float));
}

struct Codec {
  void (*encode)(const float* x, std::size_t head_dim, std::byte* to);
  void (*decode)(const std::byte* from, std::size_t head_dim, float* x);
};

constexpr Codec kCodecs[] = {
    // in the order of KvType
    {encode_f32, decode_f32},
    {encode_16<float_to_half>, decode_16<half_to_float>},
    {encode_16<float_to_bfloat>, decode_16<bfloat_to_float>},
    {encode_blocks<encode_q8>, decode_blocks<pack::BlockQ8_0>},
    {encode_blocks<encode_q4>, decode_blocks<pack::BlockQ4_0>},
};

void rotate_all(KvType type, std::size_t head_dim, float* x) {
  const std::size_t size = kv_rotation(type, head_dim);
  if (size == 0) return;
  for (std::size_t i = 0; i < head_dim; i += size) rotate_kv(size, x + i);
}

}  // namespace

std::size_t kv_rotation(KvType type, std::size_t head_dim) {
  if (type != KvType::kQ8 && type != KvType::kQ4) return 0;
  const std::size_t size = std::min(head_dim & -head_dim, kMostKvRotation);
  return size >= kKvBlock ? size : 0;
}

void rotate_kv(std::size_t size, float* x) {
  constexpr void (*kTransforms[])(float*) = {pack::hadamard<32>, pack::hadamard<64>,
                                             pack::hadamard<128>, pack::hadamard<256>};
  kTransforms[std::countr_zero(size / kKvBlock)](x);
}

void encode_kv(KvType type, const float* x, std::size_t head_dim, std::byte* to) {
  const Codec& codec = kCodecs[static_cast<std::size_t>(type)];
  if (kv_rotation(type, head_dim) == 0) return codec.encode(x, head_dim, to);
  std::vector<float> turned(x, x + head_dim);
  rotate_all(type, head_dim, turned.data());
  codec.encode(turned.data(), head_dim, to);
}

void decode_kv(KvType type, const std::byte* from, std::size_t head_dim, float* x) {
  kCodecs[static_cast<std::size_t>(type)].decode(from, head_dim, x);
  rotate_all(type, head_dim, x);
}

}  // namespace espalier::compute
