// Arranging the weights of codes_formats.cuh, and decoding them again. No thread needs another.
#pragma once

#include <cstddef>

#include "compute/gpu/cuda/codes_formats.cuh"

namespace espalier::gpu::cuda::codes {

constexpr int kWarps = 8;  // that multiply a stage of 128 outputs, a tile each
constexpr int kTileOutputs = kWarps * kTileRows;

// Of a matrix whose stages have `units` of inputs, and whose scales lie apart in groups of `group`
// inputs, or (0) do not.
inline FormatArguments format_arguments(int units, std::uint32_t scale_type, std::uint32_t group) {
  FormatArguments format{};
  format.scale_type = scale_type;
  if (group == 0) return format;
  const std::uint32_t stage_inputs = units * kUnit;
  while ((32u << format.group_shift) < group && (32u << format.group_shift) < stage_inputs) {
    ++format.group_shift;
  }
  format.tile_groups = stage_inputs / (32u << format.group_shift);
  return format;
}

template <typename Format>
__host__ __device__ constexpr int tile_bytes_of(const FormatArguments& format) {
  return Format::kUnits * kUnit * kTileRows * Format::Bits::kBits / 8 +
         Format::header_bytes(format);
}

// Decoded rows of the matrix, from output `first` on.
struct HalfRows {
  const float* factor;  // which they are multiplied by
  __half* values;       // [outputs, stride]
  int first, outputs, stride;
};

// A thread for each word of a tile's planes, and for each row of its header.
template <typename Format>
__global__ void arrange_kernel(const Weights matrix, const FormatArguments format, std::uint8_t* to,
                               int tile_stages, long long tiles) {
  using Bits = typename Format::Bits;
  constexpr int kWords = Format::kUnits * kUnit * kTileRows * Bits::kBits / 32;
  constexpr int kUpperWords = Format::kUnits * kUnit * kTileRows * Bits::kUpper / 32;
  constexpr int kParts = kWords + kTileRows;
  const long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long tile = index / kParts;  // of a warp
  if (tile >= tiles) return;
  const int part = static_cast<int>(index % kParts);
  const int warp = static_cast<int>(tile % kWarps);
  const long long stage = tile / kWarps;
  const auto row =
      static_cast<std::uint32_t>(stage / tile_stages * kTileOutputs + warp * kTileRows);
  const auto first = static_cast<std::uint32_t>(stage % tile_stages * Format::kUnits * kUnit);
  std::uint8_t* base = to + tile * tile_bytes_of<Format>(format);
  if (part >= kWords) {
    const int r = part - kWords;
    Format::header(base + kWords * 4, r, SourceRow{matrix, row + r, first}, format);
    return;
  }
  const bool lower = part >= kUpperWords;
  const int width = lower ? Bits::kLower : Bits::kUpper;
  const int in_plane = lower ? part - kUpperWords : part;
  const int lane = in_plane / 4 % 32;
  const int word = in_plane / 128 * 4 + in_plane % 4;
  std::uint32_t bits = 0;
  for (int sub = 0; sub < 8 / width; ++sub) {
    const int r = word * (8 / width) + sub;
    const std::uint32_t col = first + r / 4 * 32 + r / 2 % 2 * 16 + lane % 4 * 4;
    for (int c = 0; c < 4; ++c) {
      const std::uint32_t code =
          Format::template code_of<Format>(matrix, row + lane / 4 + r % 2 * 8, col + c);
      bits |= Bits::place(code, lower, r, c);
    }
  }
  reinterpret_cast<std::uint32_t*>(base)[part] = bits;
}

// A block for each stage along x and tile of 128 outputs along y.
template <typename Format>
__global__ void __launch_bounds__(kWarps * 32)
    decode_kernel(const std::uint8_t* weights, const FormatArguments format, int tile_stages,
                  const HalfRows to) {
  using Bits = typename Format::Bits;
  constexpr int kGroup = Format::kGroup;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int tile = to.first / kTileOutputs + blockIdx.y;
  const std::uint8_t* from =
      weights + ((static_cast<std::size_t>(tile) * tile_stages + blockIdx.x) * kWarps + warp) *
                    tile_bytes_of<Format>(format);
  const std::uint8_t* header = from + Format::kUnits * kUnit * kTileRows * Bits::kBits / 8;
  const float factor = *to.factor;
  constexpr int kHalf = Format::kUnits * kUnit / 2;  // of the tile's inputs
#pragma unroll
  for (int step = 0; step < 4 * Format::kUnits; ++step) {
    const int half = 32 * step / kHalf;
    const typename Format::Numbers numbers[2] = {
        typename Format::Numbers(header, lane / 4, half, format),
        typename Format::Numbers(header, lane / 4 + 8, half, format)};
    Pairs a;
    Bits::read(a, from, lane, step, Format::kUnits);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int in_stage = 32 * step + 16 * (i / 2);
      const int group = (in_stage - half * kHalf) / kGroup;
      const float scale = numbers[i % 2].scale(group);
      float offset = 0;
      if constexpr (Format::kOffset) offset = numbers[i % 2].offset(group);
      std::uint32_t halves[2] = {};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const std::uint32_t pair = a[i / 2][i % 2 + c % 2 * 2];
        const float bias = Bits::bias((in_stage + c) % kUnit);
        const float code = ((c < 2 ? low_half(pair) : high_half(pair)) - bias) * Format::kFactor;
        const float value = (scale * code + offset) * factor;
        halves[c / 2] |= static_cast<std::uint32_t>(__half_as_ushort(__float2half_rn(value)))
                         << (16 * (c % 2));
      }
      const int output = blockIdx.y * kTileOutputs + warp * kTileRows + lane / 4 + 8 * (i % 2);
      const int input = blockIdx.x * Format::kUnits * kUnit + in_stage + lane % 4 * 4;
      if (output < to.outputs && input < to.stride) {
        *reinterpret_cast<uint2*>(to.values + static_cast<std::size_t>(output) * to.stride +
                                  input) = make_uint2(halves[0], halves[1]);
      }
    }
  }
}

}  // namespace espalier::gpu::cuda::codes
