// What EXL3's fast kernels are made of: reading weights that exl3_mul1_arrange has put in order,
// the rotations, and how the work is divided.
//
// In a tile, the 32 weights of columns g and g + 8 are 32·K consecutive bits. A lane takes them of
// one of four tiles along the inputs (a quad), which makes every bit offset a constant, and its
// weights are in the order of a tensor core's operand. A warp's bits lie side by side in memory.
#pragma once

#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "compute/gpu/cuda/overlap.cuh"

namespace espalier::gpu::cuda {

constexpr float kHadamardScale = 0.08838834764831845f;  // 1 / √128

constexpr int kSlice = 1024;              // inputs
constexpr int kSliceQuads = kSlice / 64;  // a quad: four tiles along the inputs
constexpr int kWarps = 16;                // of a block
constexpr int kGroup = 128;               // outputs that are rotated together

struct Exl3Arguments {
  const std::uint32_t* weights;
  const __half* suh;
  const __half* svh;
  const float* bias;
  const float* x;
  float* y;
  float* partial;  // [slices, rows, padded_outputs]
  int rows, inputs, outputs, padded_inputs, padded_outputs;
};

__device__ inline int slices_of(const Exl3Arguments& args) {
  return (args.padded_inputs + kSlice - 1) / kSlice;
}

// The 128-point Hadamard transform, without its factor, of kEach consecutive values of each of
// 128 / kEach lanes: the same sums in the same order whatever kEach is.
template <int kEach>
__device__ inline void hadamard(float (&values)[kEach], int lane) {
#pragma unroll
  for (int apart = 1; apart < kEach; apart *= 2) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if ((i & apart) != 0) continue;
      const float a = values[i];
      const float b = values[i + apart];
      values[i] = a + b;
      values[i + apart] = a - b;
    }
  }
#pragma unroll
  for (int apart = 1; apart < 128 / kEach; apart *= 2) {
    const float sign = (lane & apart) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      values[i] = fmaf(sign, values[i], __shfl_xor_sync(~0u, values[i], apart));
    }
  }
}

// Four activations of a row, from input k on, times suh.
__device__ inline void load_run(float (&values)[4], const Exl3Arguments& args, int row, int k) {
  const uint2 packed = *reinterpret_cast<const uint2*>(args.suh + k);
  const float2 a = __half22float2(reinterpret_cast<const __half2&>(packed.x));
  const float2 b = __half22float2(reinterpret_cast<const __half2&>(packed.y));
  const float scale[4] = {a.x, a.y, b.x, b.y};
  const float* x = args.x + static_cast<std::size_t>(row) * args.inputs;
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = k + i < args.inputs ? x[k + i] * scale[i] : 0.0f;
}

// The bits of a warp's largest magnitude. What is not finite makes the slice's factor a NaN, and
// with that the row.
__device__ inline std::uint32_t largest_bits(const float (&values)[4]) {
  float largest = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    largest = fmaxf(largest, fabsf(values[i]));
    finite = finite && fabsf(values[i]) <= 3.4e38f;
  }
  return __reduce_max_sync(~0u, finite ? __float_as_uint(largest) : 0x7fc00000u);
}

// What stands for a codebook's multiplier where states are doubled: its quotient by 2¹⁶ + 1 modulo
// 2³².
constexpr std::uint32_t for_doubled(std::uint32_t multiplier) {
  return multiplier - (multiplier << 16);
}

// A lane's bits of two tiles that lie side by side along the outputs: the bits of 32 weights of the
// one, then of the other.
template <int kDoubleBits>
struct TilePair {
  static constexpr int kWords = kDoubleBits;
  std::uint32_t words[kWords];
  std::uint32_t start[2];  // of each tile: the 16 bits before the lane's own, then the first 16

  // In memory: four words of each lane after the other, as often as there are four, then two, then
  // one.
  __device__ void read(const std::uint32_t* from, int lane) {
    constexpr int kFours = kWords / 4;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const uint4 four = __ldcs(reinterpret_cast<const uint4*>(from) + i * 32 + lane);
      words[4 * i] = four.x, words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
    }
    if constexpr (kWords % 4 >= 2) {
      const uint2 two = __ldcs(reinterpret_cast<const uint2*>(from + kFours * 128) + lane);
      words[4 * kFours] = two.x, words[4 * kFours + 1] = two.y;
    }
    if constexpr (kWords % 2 == 1) words[kWords - 1] = __ldcs(from + (kWords - 1) * 32 + lane);
  }

  // What comes before a lane's own bits are the last of the column before.
  __device__ void find_start(int lane) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int first = kDoubleBits * tile;  // in halves of a word
      const int last = kDoubleBits * (tile + 1) - 1;
      const std::uint32_t before = __shfl_sync(~0u, words[last / 2], (lane + 28) % 32);
      start[tile] = __byte_perm(words[first / 2], before,
                                (first % 2 == 0 ? 0x32 : 0x10) | (last % 2 == 0 ? 0x7600 : 0x5400));
    }
  }

  // Word i without its first `shift` bits. (The compiler computes each only once.)
  __device__ std::uint32_t shifted(int i, int shift) const {
    if (shift == 0) return words[i];
    return i + 1 < kWords ? __funnelshift_l(words[i + 1], words[i], shift) : words[i] << shift;
  }

  // The state of weight i of a tile, doubled: state · (2¹⁶ + 1). So it is any two bytes of two
  // registers, which one permutation brings twice into a third; alone it would need zeros beside
  // it. All constants once loops are unrolled.
  __device__ std::uint32_t doubled_state(int tile, int i) const {
    const int bits = (i + 1) * kDoubleBits / 2;
    const bool at_start = bits < 16;
    const int end = at_start ? 16 + bits : 16 * kDoubleBits * tile + bits;
    const int shift = end % 8;
    const int last = end / 8 - 1;  // byte of the shifted bits
    if (!at_start && last % 4 == 0) {
      return __byte_perm(shifted(last / 4, shift), shifted(last / 4 - 1, shift), 0x4343);
    }
    const std::uint32_t word = at_start ? start[tile] << shift : shifted(last / 4, shift);
    const unsigned low = 3 - last % 4;
    return __byte_perm(word, 0, (low | (low + 1) << 4) * 0x101);
  }

  // Whether the state of weight i is the upper or lower half of a word that doubled_state uses.
  static __device__ bool is_half_word(int i) {
    const int bits = (i + 1) * kDoubleBits / 2;
    return bits >= 16 && bits / 8 % 2 == 0;
  }
  // That state alone. The dot product selects the half on the pipe of multiplications, where a
  // permutation would take that of shifts and logic, which has more to do.
  __device__ std::uint32_t half_word(int tile, int i) const {
    const int end = 16 * kDoubleBits * tile + (i + 1) * kDoubleBits / 2;
    const int last = end / 8 - 1;
    return __dp2a_lo(shifted(last / 4, end % 8), last % 4 == 3 ? 0x1u : 0x100u, 0u);
  }
};

// How the work is divided. A unit is some pairs of tiles along the outputs over a whole slice. A
// block has a contiguous run of units (slice by slice), which it does in rounds of units of one
// slice, whose operand is in shared memory. The items of a round, each a unit in one quad, are
// dealt to teams of warps in contiguous shares, and the teams' sums meet in shared memory.
template <int kUnitPairs_, int kTeamWarps_, int kFragments_, int kRoundBytes = 80 * 1024>
struct Division {
  static constexpr int kUnitPairs = kUnitPairs_;
  static constexpr int kTeamWarps = kTeamWarps_;  // each with the same number of pairs
  static constexpr int kFragments = kFragments_;
  static constexpr int kTeams = kWarps / kTeamWarps;
  static constexpr int kWarpPairs = kUnitPairs / kTeamWarps;
  static constexpr int kUnitOutputs = kUnitPairs * 32;
  static constexpr int kUnitSums = kUnitOutputs * kFragments * 8;
  static constexpr int kWarpSums = kUnitSums / kTeamWarps;
  // Most units are done long before a round ends: the larger, the better.
  static constexpr int kRoundUnits = std::max(1, std::min(32, kRoundBytes / (kUnitSums * 4)));
  static constexpr int kSumsBytes = kRoundUnits * kUnitSums * 4;
};

// A team's place in the block's run.
template <typename D>
struct Cursor {
  int slice_units, total_quads, team;
  int slice, unit, left;        // of the block
  int units, quads, item, end;  // of the round; of the team's share

  __device__ Cursor(const Exl3Arguments& args, int first, int last) {
    slice_units = args.padded_outputs / D::kUnitOutputs;
    total_quads = args.padded_inputs / 64;
    team = threadIdx.x / (32 * D::kTeamWarps);
    slice = first / slice_units;
    unit = first % slice_units;
    left = last - first;
    if (left > 0) start_round();
  }
  __device__ void start_round() {
    units = min(D::kRoundUnits, min(left, slice_units - unit));
    quads = min(kSliceQuads, total_quads - slice * kSliceQuads);
    const int items = units * quads;
    item = items * team / D::kTeams;
    end = items * (team + 1) / D::kTeams;
  }
  __device__ void next_round() {
    left -= units;
    unit += units;
    if (unit == slice_units) {
      unit = 0;
      ++slice;
    }
    if (left > 0) start_round();
  }
  __device__ int item_unit() const {
    return quads == kSliceQuads ? item / kSliceQuads : item / quads;
  }
};

// A warp's place in its team.
template <typename D>
__device__ inline int team_warp() {
  return threadIdx.x / 32 % D::kTeamWarps;
}

// Reads a lane's bits of one item after the other, ahead of the products.
template <int kDoubleBits, typename D>
struct Fetcher {
  static constexpr int kPairWords = kDoubleBits * 32;  // of a pair of tiles in a quad
  const std::uint32_t* weights;
  Cursor<D> at;
  const std::uint32_t* from = nullptr;
  int run = 0;  // items to read before the unit ends, or the round

  __device__ Fetcher(const Exl3Arguments& args, const Cursor<D>& start)
      : weights(args.weights), at(start) {
    seek();
  }
  __device__ void seek() {
    while (at.left > 0 && at.item == at.end) at.next_round();
    if (at.left <= 0) return;
    const int unit = at.item_unit();
    const int quad = at.item - unit * at.quads;
    run = min(at.quads - quad, at.end - at.item);
    at.item += run;
    // Pairs of tiles lie in twos, quad by quad.
    const int pair = (at.unit + unit) * D::kUnitPairs + team_warp<D>() * D::kWarpPairs;
    const std::size_t two =
        static_cast<std::size_t>(pair / 2) * at.total_quads + at.slice * kSliceQuads + quad;
    from = weights + (two * 2 + pair % 2) * kPairWords;
  }
  __device__ void fetch(TilePair<kDoubleBits> (&to)[D::kWarpPairs]) {
    if (at.left <= 0) return;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < D::kWarpPairs; ++j) to[j].read(from + j * kPairWords, lane);
    from += 2 * kPairWords;
    if (--run == 0) seek();
  }
};

// Which of a unit's sums a team hands in: those from the unit's first item on, or those of items
// after another team's.
enum class Part { kFirst, kLater };

// All items of a team's share of a round. `multiply(tiles, quad)` adds an item's products to the
// team's sums; deposit(unit, part) takes them, and clears them.
template <int kDoubleBits, typename D, typename Multiply, typename Deposit>
__device__ inline void run_share(const Cursor<D>& at, Fetcher<kDoubleBits, D>& fetcher,
                                 TilePair<kDoubleBits> (&even)[D::kWarpPairs],
                                 const Multiply& multiply, const Deposit& deposit) {
  using Tiles = TilePair<kDoubleBits>[D::kWarpPairs];
  Tiles odd;
  int unit = at.item_unit();
  int quad = at.item - unit * at.quads;
  int items = at.end - at.item;
  Part part = quad == 0 ? Part::kFirst : Part::kLater;
  const auto step = [&](Tiles& now, Tiles& next) {
    fetcher.fetch(next);
    multiply(now, quad);
    ++quad;
    --items;
    if (quad != at.quads && items != 0) return;
    deposit(unit, part);
    part = Part::kFirst;
    quad = 0;
    ++unit;
  };
#pragma unroll 1
  while (items > 0) {
    step(even, odd);
    if (items == 0) {
#pragma unroll
      for (int j = 0; j < D::kWarpPairs; ++j) even[j] = odd[j];
      break;
    }
    step(odd, even);
  }
}

// Adds up the slices of a row's group of outputs in order, rotates and scales. For a warp.
__device__ inline void finish_row(const Exl3Arguments& args, int group, int row) {
  constexpr int kAtOnce = 8;  // slices that are read before the first is added
  const int slices = slices_of(args);
  const int lane = threadIdx.x % 32;
  const int first = group * kGroup + lane * 4;
  const float* from = args.partial + static_cast<std::size_t>(row) * args.padded_outputs + first;
  const std::size_t slice_floats = static_cast<std::size_t>(args.rows) * args.padded_outputs;
  const uint2 packed = *reinterpret_cast<const uint2*>(args.svh + first);
  float values[4] = {};
  for (int slice = 0; slice < slices; slice += kAtOnce) {
    float4 sums[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      sums[i] = slice + i < slices
                    ? __ldcg(reinterpret_cast<const float4*>(from + (slice + i) * slice_floats))
                    : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      values[0] += sums[i].x, values[1] += sums[i].y;
      values[2] += sums[i].z, values[3] += sums[i].w;
    }
  }
  hadamard(values, lane);
  const float2 a = __half22float2(reinterpret_cast<const __half2&>(packed.x));
  const float2 b = __half22float2(reinterpret_cast<const __half2&>(packed.y));
  const float scales[4] = {a.x, a.y, b.x, b.y};
  float* y = args.y + static_cast<std::size_t>(row) * args.outputs;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float value = values[i] * (scales[i] * kHadamardScale);
    const int output = first + i;
    if (output < args.outputs) y[output] = value + (args.bias != nullptr ? args.bias[output] : 0);
  }
}

// A block's first unit.
template <typename D>
__device__ inline int first_unit(const Exl3Arguments& args, unsigned block) {
  const long long total =
      static_cast<long long>(args.padded_outputs / D::kUnitOutputs) * slices_of(args);
  return static_cast<int>(total * block / gridDim.x);
}

}  // namespace espalier::gpu::cuda
