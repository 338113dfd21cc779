// How EXL3's MUL1 product runs on integer tensor cores.
//
// A MUL1 weight is affine in the sum of the four bytes of state · 0x83dcd12d. The product goes as
// it is into m16n8k32 (u8 × s8 → s32), whose other operand holds the activation of that weight four
// times: the instruction adds up the bytes.
//
// Activations: rotated, scaled to 16 bits by one factor for each row and slice of 1,024 inputs, and
// fed as two planes of s8, columns 2r and 2r + 1 of a fragment of 8. So a fragment serves 4 rows,
// and all sums over a slice are exact integers, whose order does not matter: neither the division
// of the work, nor the instruction, nor the number of rows changes a bit. Floats begin with a
// slice's sums, which are added slice by slice by the block that completes 128 outputs.
//
// Weights: in a tile, the 32 weights of columns g and g + 8 are 32·K consecutive bits. A lane takes
// them of one of four tiles along the inputs (a quad), which makes every bit offset a constant, and
// its weights come out of the multiplication as the instruction's operand. exl3_mul1_arrange puts
// the bits that a warp reads together side by side.
#include <cuda_fp16.h>

#include <algorithm>
#include <string>

#include "compute/gpu/cuda/exl3_mul1.h"
#include "compute/gpu/cuda/overlap.cuh"

namespace espalier::gpu::cuda {
namespace {

// The multiplier of the codebook, and what stands for it where a state is doubled to
// state · (2¹⁶ + 1): its quotient by 2¹⁶ + 1 modulo 2³². Doubled, a state is any two bytes of two
// registers, which one permutation brings twice into a third; alone it would need zeros beside it.
constexpr std::uint32_t kMultiplier = 0x83dcd12du;
constexpr std::uint32_t kDoubledMultiplier = kMultiplier - (kMultiplier << 16);

// weight = kStep · (bytes − 510) + kOffset: the halves 0x1eee and 0xc931, without the rounding of
// each weight to half. 510 is the mean of the bytes' sum.
constexpr double kStepExact = 0.00390625 * (1.0 + 750.0 / 1024);
constexpr float kStep = static_cast<float>(kStepExact);
constexpr int kMeanBytes = 510;
constexpr float kOffset = static_cast<float>((1024 + kMeanBytes) * kStepExact - 10.3828125);

constexpr float kHadamardScale = 0.08838834764831845f;  // 1 / √128
constexpr float kLargest = 32600;                       // of a 16-bit activation: both planes in s8

constexpr int kSlice = 1024;              // inputs
constexpr int kSliceQuads = kSlice / 64;  // a quad: four tiles along the inputs
constexpr int kRowsPerFragment = 4;
constexpr int kFragmentWords = 128;    // of four activations each, of a quad
constexpr int kWarps = 16;             // of a block
constexpr std::uint32_t kFewRows = 8;  // that every block rotates itself
constexpr int kGroup = 128;            // outputs that are rotated together

// A row's activations of a slice.
struct RowSlice {
  std::uint32_t most;  // the bits of the largest magnitude
  int high, low;       // the sums of the planes
  int padding;         // to 16 bytes
};

struct Arguments {
  const std::uint32_t* weights;
  const __half* suh;
  const __half* svh;
  const float* bias;
  const float* x;
  float* y;
  std::uint32_t* arrived;  // [groups]: units of work done; zero between calls
  float* partial;          // [slices, rows, padded_outputs]
  RowSlice* row_slices;    // of more than 8 rows, [slices, rows]
  std::int16_t* codes;     // the same, [slices, rows, kSlice]
  int rows, inputs, outputs, padded_inputs, padded_outputs;
};

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
__device__ inline void load_run(float (&values)[4], const Arguments& args, int row, int k) {
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

// The two planes of a 16-bit activation: code = 256 · high + low.
struct Planes {
  int high, low;
};
__device__ inline Planes planes_of(int code) {
  const int high = (code + 128) >> 8;
  return {high, code - high * 256};
}

// Scales to 16 bits, and adds up the warp's planes in a row's slice.
__device__ inline void quantize(int (&codes)[4], const float (&values)[4], RowSlice* row,
                                int lane) {
  const float largest = __uint_as_float(row->most);
  const float to_code = largest > 0 ? kLargest / largest : 0.0f;
  Planes sum = {0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes[i] = __float2int_rn(values[i] * to_code);
    const Planes planes = planes_of(codes[i]);
    sum.high += planes.high;
    sum.low += planes.low;
  }
  sum.high = __reduce_add_sync(~0u, sum.high);
  sum.low = __reduce_add_sync(~0u, sum.low);
  if (lane == 0) {
    atomicAdd(&row->high, sum.high);
    atomicAdd(&row->low, sum.low);
  }
}

// For more than 8 rows: rotates and scales all of them once. A block for each slice along x and row
// along y, a warp for each run of 128.
constexpr int kPrepareThreads = kSlice / 4;
__global__ void __launch_bounds__(kPrepareThreads) exl3_mul1_prepare(const Arguments args) {
  __shared__ RowSlice shared;
  const int lane = threadIdx.x % 32;
  const int slice = blockIdx.x;
  const int row = blockIdx.y;
  const int k = slice * kSlice + threadIdx.x * 4;
  const bool inside = k < args.padded_inputs;  // the same for all of a warp
  if (threadIdx.x == 0) shared = {};
  let_the_next_kernel_start();
  wait_for_the_kernel_before();
  __syncthreads();
  float values[4] = {};
  if (inside) {
    load_run(values, args, row, k);
    hadamard(values, lane);
    const std::uint32_t bits = largest_bits(values);
    if (lane == 0) atomicMax(&shared.most, bits);
  }
  __syncthreads();
  if (inside) {
    int codes[4];
    quantize(codes, values, &shared, lane);
    short4 out = make_short4(codes[0], codes[1], codes[2], codes[3]);
    *reinterpret_cast<short4*>(args.codes +
                               (static_cast<std::size_t>(slice) * args.rows + row) * kSlice +
                               threadIdx.x * 4) = out;
  }
  __syncthreads();
  if (threadIdx.x == 0) args.row_slices[slice * args.rows + row] = shared;
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

  // The product of the state of weight i of a tile; all constants once loops are unrolled.
  __device__ std::uint32_t product(int tile, int i) const {
    const int bits = (i + 1) * kDoubleBits / 2;
    const bool at_start = bits < 16;
    const int end = at_start ? 16 + bits : 16 * kDoubleBits * tile + bits;
    const int shift = end % 8;
    const int last = end / 8 - 1;  // byte of the shifted bits
    std::uint32_t doubled;
    if (!at_start && last % 4 == 0) {
      doubled = __byte_perm(shifted(last / 4, shift), shifted(last / 4 - 1, shift), 0x4343);
    } else {
      const std::uint32_t word = at_start ? start[tile] << shift : shifted(last / 4, shift);
      const unsigned low = 3 - last % 4;
      doubled = __byte_perm(word, 0, (low | (low + 1) << 4) * 0x101);
    }
    return doubled * kDoubledMultiplier;
  }
};

// How the work is divided. A unit is some pairs of tiles along the outputs over a whole slice. A
// block has a contiguous run of units (slice by slice), which it does in rounds of units of one
// slice, whose operand is in shared memory. The items of a round, each a unit in one quad, are
// dealt to teams of warps in contiguous shares, and the teams' sums meet in shared memory.
template <int kUnitPairs_, int kTeamWarps_, int kFragments_>
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
  static constexpr int kRoundUnits = std::max(1, std::min(32, 80 * 1024 / (kUnitSums * 4)));
  static constexpr int kSumsBytes = kRoundUnits * kUnitSums * 4;
  static constexpr int kMostRows = kFragments * kRowsPerFragment;
};

// A team's place in the block's run.
template <typename D>
struct Cursor {
  int slice_units, total_quads, team;
  int slice, unit, left;        // of the block
  int units, quads, item, end;  // of the round; of the team's share

  __device__ Cursor(const Arguments& args, int first, int last) {
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

  __device__ Fetcher(const Arguments& args, const Cursor<D>& start)
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

// All items of a team's share of a round. `multiply(tiles, quad)` adds an item's products to `acc`.
template <int kDoubleBits, typename D, typename Multiply>
__device__ inline void run_share(const Cursor<D>& at, Fetcher<kDoubleBits, D>& fetcher,
                                 TilePair<kDoubleBits> (&even)[D::kWarpPairs],
                                 int (&acc)[D::kWarpPairs * 2][D::kFragments][4], int* sums,
                                 const Multiply& multiply) {
  using Tiles = TilePair<kDoubleBits>[D::kWarpPairs];
  Tiles odd;
  int unit = at.item_unit();
  int quad = at.item - unit * at.quads;
  int items = at.end - at.item;
  const auto step = [&](Tiles& now, Tiles& next) {
    fetcher.fetch(next);
    multiply(now, quad);
    ++quad;
    --items;
    if (quad != at.quads && items != 0) return;
    int* to = sums + unit * D::kUnitSums + team_warp<D>() * D::kWarpSums + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < D::kWarpSums / 32; ++i) {
      int& sum = acc[i / (D::kFragments * 4)][i / 4 % D::kFragments][i % 4];
      atomicAdd(to + i * 32, sum);
      sum = 0;
    }
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

// The sums of a round, [units, tiles, fragments, 4, 32] as the tensor cores leave them, to floats
// of this slice. Clears them.
template <typename D>
__device__ inline void write_round(int* sums, const RowSlice* rows, const Arguments& args,
                                   const Cursor<D>& at) {
  const int columns = at.units * D::kUnitOutputs;
  for (int column = threadIdx.x; column < columns; column += kWarps * 32) {
    // Register 0 and 1 of a lane: output lane / 4, planes of row lane % 4. Registers 2 and 3: the
    // output 8 further.
    int* of_column =
        sums + column / 16 * (D::kFragments * 128) + column / 8 % 2 * 64 + column % 8 * 4;
    float* to = args.partial +
                static_cast<std::size_t>(at.slice) * args.rows * args.padded_outputs +
                at.unit * D::kUnitOutputs + column;
#pragma unroll
    for (int f = 0; f < D::kFragments; ++f) {
      int4* high_at = reinterpret_cast<int4*>(of_column + f * 128);
      int4* low_at = reinterpret_cast<int4*>(of_column + f * 128 + 32);
      const int4 high4 = *high_at;
      const int4 low4 = *low_at;
      *high_at = *low_at = make_int4(0, 0, 0, 0);
      const int high[4] = {high4.x, high4.y, high4.z, high4.w};
      const int low[4] = {low4.x, low4.y, low4.z, low4.w};
#pragma unroll
      for (int r = 0; r < kRowsPerFragment; ++r) {
        const int row = f * kRowsPerFragment + r;
        if (row >= args.rows) break;
        const RowSlice s = rows[row];
        const float scale = __uint_as_float(s.most) * (kHadamardScale / kLargest);
        const float product = fmaf(static_cast<float>(high[r] - kMeanBytes * s.high), 256.0f,
                                   static_cast<float>(low[r] - kMeanBytes * s.low));
        const float x_sum = fmaf(static_cast<float>(s.high), 256.0f, static_cast<float>(s.low));
        __stcg(to + static_cast<std::size_t>(row) * args.padded_outputs,
               scale * fmaf(product, kStep, x_sum * kOffset));
      }
    }
  }
}

// Counts the block's units in the groups of 128 outputs that they belong to. `completed` becomes
// the number of groups of which this block is the last, and they themselves.
template <typename D>
__device__ inline void arrive(int* completed, const Arguments& args, int first, int last) {
  constexpr int kGroupUnits = kGroup / D::kUnitOutputs;
  const int slice_units = args.padded_outputs / D::kUnitOutputs;
  const int slices = (args.padded_inputs / 64 + kSliceQuads - 1) / kSliceQuads;
  for (int group = threadIdx.x; group < args.padded_outputs / kGroup; group += kWarps * 32) {
    int units = 0;
    for (int slice = first / slice_units; slice * slice_units < last; ++slice) {
      const int begin = slice * slice_units + group * kGroupUnits;
      units += max(0, min(last, begin + kGroupUnits) - max(first, begin));
    }
    if (units == 0) continue;
    __threadfence();  // the sums before the count
    const std::uint32_t before = atomicAdd(args.arrived + group, static_cast<std::uint32_t>(units));
    if (before + units != static_cast<std::uint32_t>(slices * kGroupUnits)) continue;
    args.arrived[group] = 0;
    completed[1 + atomicAdd(completed, 1)] = group;
    __threadfence();  // the count before the others' sums
  }
}

// Adds up the slices of a completed group's row in order, rotates and scales. Half a warp each.
__device__ inline void finish_rows(const int* completed, const Arguments& args, int slices) {
  const int lane = threadIdx.x % 32;
  const int tasks = completed[0] * args.rows;
  for (int pair = threadIdx.x / 32 * 2; pair < tasks; pair += kWarps * 2) {
    const int task = min(pair + lane / 16, tasks - 1);
    const int row = task % args.rows;
    const int first = completed[1 + task / args.rows] * kGroup + lane % 16 * 8;
    const float* from = args.partial + static_cast<std::size_t>(row) * args.padded_outputs + first;
    const std::size_t slice_floats = static_cast<std::size_t>(args.rows) * args.padded_outputs;
    const uint4 packed = *reinterpret_cast<const uint4*>(args.svh + first);
    float values[8] = {};
#pragma unroll 4
    for (int slice = 0; slice < slices; ++slice) {
      const auto* four = reinterpret_cast<const float4*>(from + slice * slice_floats);
      const float4 a = __ldcg(four);
      const float4 b = __ldcg(four + 1);
      values[0] += a.x, values[1] += a.y, values[2] += a.z, values[3] += a.w;
      values[4] += b.x, values[5] += b.y, values[6] += b.z, values[7] += b.w;
    }
    hadamard(values, lane);
    if (pair + lane / 16 >= tasks) continue;
    const std::uint32_t scales[4] = {packed.x, packed.y, packed.z, packed.w};
    float* y = args.y + static_cast<std::size_t>(row) * args.outputs;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 two = __half22float2(reinterpret_cast<const __half2&>(scales[i / 2]));
      const float value = values[i] * ((i % 2 == 0 ? two.x : two.y) * kHadamardScale);
      const int output = first + i;
      if (output < args.outputs) y[output] = value + (args.bias != nullptr ? args.bias[output] : 0);
    }
  }
}

// What a block does after its products: where it is the last of a group, it finishes the group.
// `memory` has room for a list of all groups.
template <typename D>
__device__ inline void finish(std::uint8_t* memory, const Arguments& args, int first, int last) {
  int* completed = reinterpret_cast<int*>(memory);
  if (threadIdx.x == 0) completed[0] = 0;
  __syncthreads();
  arrive<D>(completed, args, first, last);
  __syncthreads();
  finish_rows(completed, args, (args.padded_inputs / 64 + kSliceQuads - 1) / kSliceQuads);
}
constexpr std::uint32_t kMostGroups = 4095;  // a list of 16 KB

template <typename D>
__device__ inline void clear(int* sums) {
  for (int i = threadIdx.x; i < D::kSumsBytes / 16; i += kWarps * 32) {
    reinterpret_cast<int4*>(sums)[i] = make_int4(0, 0, 0, 0);
  }
}

// A block's first unit.
template <typename D>
__device__ inline int first_unit(const Arguments& args, unsigned block) {
  const int slices = (args.padded_inputs / 64 + kSliceQuads - 1) / kSliceQuads;
  const long long total = static_cast<long long>(args.padded_outputs / D::kUnitOutputs) * slices;
  return static_cast<int>(total * block / gridDim.x);
}

// ---- Up to 8 rows: every block rotates the activations itself, and mma.sync multiplies.

// Rotates the rows' activations of a slice and leaves the product's operand, each activation four
// times. A warp for each run of 128 of a row at a time. Ends with a barrier; `rows` is clear
// before.
template <int kFragments>
__device__ inline void prepare(uint4* operand, RowSlice* rows, const Arguments& args, int slice) {
  constexpr int kRuns = kSlice / 128;
  constexpr int kTasks = kFragments * kRowsPerFragment * kRuns / kWarps;
  constexpr int kRowStep = kWarps / kRuns;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int in_slice = warp % kRuns * 128 + lane * 4;
  const int k = slice * kSlice + in_slice;
  const bool inside = k < args.padded_inputs;  // the same for all of a warp
  const int first_row = warp / kRuns;
  float values[kTasks][4];
  if (inside) {
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
      const int row = first_row + task * kRowStep;
      if (row < args.rows) load_run(values[task], args, row, k);
    }
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
      const int row = first_row + task * kRowStep;
      if (row >= args.rows) break;
      hadamard(values[task], lane);
      const std::uint32_t bits = largest_bits(values[task]);
      if (lane == 0) atomicMax(&rows[row].most, bits);
    }
  }
  __syncthreads();
  if (inside) {
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
      const int row = first_row + task * kRowStep;
      if (row >= args.rows) break;
      int codes[4];
      quantize(codes, values[task], rows + row, lane);
      // Word `pair` of tile `tile` holds inputs 2·pair, 2·pair + 1, 2·pair + 8 and 2·pair + 9 of
      // it.
      const int quad = in_slice / 64;
      const int tile = in_slice / 16 % 4;
      const int pair = in_slice % 8 / 2;
      const int upper_half = in_slice / 8 % 2;
      const int column = row % kRowsPerFragment * 2;
      auto* to = reinterpret_cast<uint2*>(
          operand + (row / kRowsPerFragment * kSliceQuads + quad) * kFragmentWords + pair * 32 +
          column * 4 + tile);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Planes a = planes_of(codes[2 * i]);
        const Planes b = planes_of(codes[2 * i + 1]);
        to[i * 64 + upper_half] = make_uint2(__byte_perm(a.high, 0, 0), __byte_perm(b.high, 0, 0));
        to[i * 64 + 8 + upper_half] =
            make_uint2(__byte_perm(a.low, 0, 0), __byte_perm(b.low, 0, 0));
      }
    }
  }
  __syncthreads();
}

__device__ inline void multiply(int (&sums)[4], std::uint32_t a0, std::uint32_t a1,
                                std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A warp takes two pairs of tiles where its registers hold their bits and sums.
template <int kDoubleBits, int kFragments>
using FewRows = Division<(kFragments > 1 || kDoubleBits > 12 ? 1 : 2), 1, kFragments>;
template <int kFragments>
constexpr int kFewRowsOperand = kFragments* kSliceQuads* kFragmentWords * 16;

template <int kDoubleBits, int kFragments>
__global__ void __launch_bounds__(kWarps * 32, 1) exl3_mul1_few_rows(const Arguments args) {
  using D = FewRows<kDoubleBits, kFragments>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ RowSlice rows[D::kMostRows];
  uint4* operand = reinterpret_cast<uint4*>(memory);
  int* sums = reinterpret_cast<int*>(memory + kFewRowsOperand<kFragments>);
  const int lane = threadIdx.x % 32;

  const int first = first_unit<D>(args, blockIdx.x);
  const int last = first_unit<D>(args, blockIdx.x + 1);
  Cursor<D> at(args, first, last);
  // The weights do not depend on the kernel before.
  Fetcher<kDoubleBits, D> fetcher(args, at);
  TilePair<kDoubleBits> tiles[D::kWarpPairs];
  fetcher.fetch(tiles);
  clear<D>(sums);
  let_the_next_kernel_start();
  wait_for_the_kernel_before();

  int acc[D::kWarpPairs * 2][kFragments][4] = {};
  const auto multiply_item = [&](TilePair<kDoubleBits>(&now)[D::kWarpPairs], int quad) {
    const uint4* b = operand + quad * kFragmentWords + lane;
#pragma unroll
    for (int j = 0; j < D::kWarpPairs; ++j) now[j].find_start(lane);
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      uint4 x[kFragments];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        x[f] = b[f * (kSliceQuads * kFragmentWords) + eight * 32];
      }
#pragma unroll
      for (int j = 0; j < D::kWarpPairs * 2; ++j) {
        std::uint32_t w[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) w[i] = now[j / 2].product(j % 2, eight * 8 + i);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          multiply(acc[j][f], w[0], w[4], w[1], w[5], x[f].x, x[f].y);
          multiply(acc[j][f], w[2], w[6], w[3], w[7], x[f].z, x[f].w);
        }
      }
    }
  };
  int loaded = -1;
  while (at.left > 0) {
    if (at.slice != loaded) {
      if (threadIdx.x < D::kMostRows) rows[threadIdx.x] = {};
      __syncthreads();
      prepare<kFragments>(operand, rows, args, at.slice);
      loaded = at.slice;
    }
    run_share<kDoubleBits, D>(at, fetcher, tiles, acc, sums, multiply_item);
    __syncthreads();
    write_round<D>(sums, rows, args, at);
    at.next_round();
    __syncthreads();
  }
  finish<D>(memory, args, first, last);
}

// ---- 9 to 16 rows on Hopper: wgmma, whose four warps hold 16 outputs each and which reads the
// operand from shared memory.

// The operand: for each quad and input of a tile a block of [fragments, 8 columns, 4 tiles], each
// activation four times: two of wgmma's core matrices lie one such block apart. The padding keeps
// the writes of a warp in different banks.
template <int kFragments>
struct WideOperand {
  static constexpr int kInputBytes = kFragments * 128;
  static constexpr int kQuadBytes = 16 * kInputBytes + 64;
  static __device__ int at(int quad, int input) {
    return quad * kQuadBytes + input * kInputBytes + input / 4 * 16;
  }
};

template <int kFragments>
using ManyRows = Division<4, 4, kFragments>;
template <int kFragments>
constexpr int kManyRowsOperand = WideOperand<kFragments>::kQuadBytes* kSliceQuads;

// A slice's codes as the operand, and what is known of the rows.
template <int kFragments>
__device__ inline void load_operand(std::uint8_t* operand, RowSlice* rows, const Arguments& args,
                                    int slice) {
  using Operand = WideOperand<kFragments>;
  constexpr int kFours = kSliceQuads * 16;  // of codes, a row
  const std::int16_t* codes = args.codes + static_cast<std::size_t>(slice) * args.rows * kSlice;
  if (threadIdx.x < args.rows) {
    rows[threadIdx.x] = args.row_slices[slice * args.rows + threadIdx.x];
  }
  for (int i = threadIdx.x; i < args.rows * kFours; i += kWarps * 32) {
    const int row = i / kFours;
    const int k = i % kFours * 4;
    const uint2 four = __ldcg(reinterpret_cast<const uint2*>(codes + row * kSlice + k));
    const int code[4] = {static_cast<std::int16_t>(four.x), static_cast<int>(four.x) >> 16,
                         static_cast<std::int16_t>(four.y), static_cast<int>(four.y) >> 16};
    std::uint8_t* to =
        operand + row / kRowsPerFragment * 128 + row % kRowsPerFragment * 32 + k / 16 % 4 * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Planes planes = planes_of(code[j]);
      auto* word = reinterpret_cast<std::uint32_t*>(to + Operand::at(k / 64, k % 16 + j));
      word[0] = __byte_perm(planes.high, 0, 0);
      word[4] = __byte_perm(planes.low, 0, 0);
    }
  }
}

// Where there is no wgmma, the kernel is compiled, but not called.
__device__ inline void begin_wgmma() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// Ends a group of them, and waits for all groups but the last kPending.
template <int kPending>
__device__ inline void end_wgmma() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
__device__ inline void wgmma(int (&d)[4][4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                             std::uint32_t a3, std::uint64_t b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1;"
      : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]), "+r"(d[1][1]),
        "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]), "+r"(d[2][2]), "+r"(d[2][3]),
        "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]), "+r"(d[3][3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
#else
  d[0][0] += static_cast<int>(a0 + a1 + a2 + a3 + b);  // uses what it is given
#endif
}

template <int kDoubleBits, int kFragments>
__global__ void __launch_bounds__(kWarps * 32, 1) exl3_mul1_many_rows(const Arguments args) {
  using D = ManyRows<kFragments>;
  using Operand = WideOperand<kFragments>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ RowSlice rows[D::kMostRows];
  int* sums = reinterpret_cast<int*>(memory + kManyRowsOperand<kFragments>);
  const int lane = threadIdx.x % 32;

  const int first = first_unit<D>(args, blockIdx.x);
  const int last = first_unit<D>(args, blockIdx.x + 1);
  Cursor<D> at(args, first, last);
  // The weights do not depend on the kernel before.
  Fetcher<kDoubleBits, D> fetcher(args, at);
  TilePair<kDoubleBits> tiles[1];
  fetcher.fetch(tiles);
  clear<D>(sums);
  let_the_next_kernel_start();
  wait_for_the_kernel_before();

  // A descriptor of the operand: in its upper word how far core matrices lie apart along the
  // columns, in the lower one how far along the inputs, and where; all in 16 bytes.
  constexpr std::uint64_t kColumns = std::uint64_t{128 / 16} << 32;
  const std::uint32_t where = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)) >> 4 |
                              static_cast<std::uint32_t>(Operand::kInputBytes / 16) << 16;
  int acc[2][kFragments][4] = {};
  const auto multiply_item = [&](TilePair<kDoubleBits>(&now)[1], int quad) {
    now[0].find_start(lane);
    // Taken from lane 0, which tells the compiler that it is the same in all.
    const std::uint32_t at_quad = __shfl_sync(~0u, where + Operand::at(quad, 0) / 16, 0);
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      std::uint32_t w[2][8];
#pragma unroll
      for (int i = 0; i < 16; ++i) w[i / 8][i % 8] = now[0].product(i / 8, eight * 8 + i % 8);
      const std::uint64_t low = kColumns | (at_quad + Operand::at(0, 2 * eight) / 16);
      const std::uint64_t high = kColumns | (at_quad + Operand::at(0, 2 * eight + 8) / 16);
      begin_wgmma();
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        wgmma(acc[j], w[j][0], w[j][4], w[j][1], w[j][5], low);
        wgmma(acc[j], w[j][2], w[j][6], w[j][3], w[j][7], high);
      }
      if (eight == 3) {
        end_wgmma<0>();
      } else {
        end_wgmma<1>();
      }
    }
  };
  int loaded = -1;
  while (at.left > 0) {
    if (at.slice != loaded) {
      load_operand<kFragments>(memory, rows, args, at.slice);
#if __CUDA_ARCH__ >= 900
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // writes, then wgmma's reads
#endif
      __syncthreads();
      loaded = at.slice;
    }
    run_share<kDoubleBits, D>(at, fetcher, tiles, acc, sums, multiply_item);
    __syncthreads();
    write_round<D>(sums, rows, args, at);
    at.next_round();
    __syncthreads();
  }
  finish<D>(memory, args, first, last);
}

// A thread for each word that a lane reads of a pair of tiles in a quad.
__global__ void exl3_mul1_arrange_kernel(const std::uint32_t* trellis, std::uint32_t* weights,
                                         int double_bits, int input_tiles, int output_tiles) {
  const long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int pair_words = double_bits * 32;
  if (index >= static_cast<long long>(input_tiles / 4) * (output_tiles / 2) * pair_words) return;
  const int lane = index / double_bits % 32;
  const int word = index % double_bits;
  const long long item = index / pair_words;  // of two side by side, quad by quad
  const int quads = input_tiles / 4;
  const int quad = item / 2 % quads;
  const int pair = static_cast<int>(item / 2 / quads) * 2 + item % 2;
  std::uint32_t out = 0;
  for (int half = 2 * word; half < 2 * word + 2; ++half) {
    const int tile = pair * 2 + half / double_bits;
    const int at = lane / 4 * double_bits + half % double_bits;  // in the tile
    const std::uint32_t from =
        trellis[(static_cast<long long>(quad * 4 + lane % 4) * output_tiles + tile) *
                    (4 * double_bits) +
                at / 2];
    out = out << 16 | (at % 2 == 0 ? from >> 16 : from & 0xffff);
  }
  // As TilePair::read reads it.
  const int fours = double_bits / 4 * 4;
  const int width = word < fours ? 4 : word - fours < double_bits % 4 / 2 * 2 ? 2 : 1;
  const int chunk = word / width * width;
  weights[item * pair_words + chunk * 32 + lane * width + word - chunk] = out;
}

using Kernel = void (*)(Arguments);

struct Variant {
  Kernel kernel;
  int shared_bytes;
};

// For up to 4, 8 and 16 rows.
template <int kDoubleBits>
constexpr Variant kVariants[] = {
    {exl3_mul1_few_rows<kDoubleBits, 1>, kFewRowsOperand<1> + FewRows<kDoubleBits, 1>::kSumsBytes},
    {exl3_mul1_few_rows<kDoubleBits, 2>, kFewRowsOperand<2> + FewRows<kDoubleBits, 2>::kSumsBytes},
    {exl3_mul1_many_rows<kDoubleBits, 4>, kManyRowsOperand<4> + ManyRows<4>::kSumsBytes},
};

// By twice the bits.
constexpr const Variant* kRates[] = {
    nullptr,       nullptr,      kVariants<2>,  kVariants<3>, kVariants<4>,  kVariants<5>,
    kVariants<6>,  kVariants<7>, kVariants<8>,  nullptr,      kVariants<10>, nullptr,
    kVariants<12>, nullptr,      kVariants<14>, nullptr,      kVariants<16>,
};

int slices_of(const Exl3Layer& layer) {
  return static_cast<int>((layer.padded_inputs + kSlice - 1) / kSlice);
}

// The most features, so that the count of each group of 128 outputs has a place of its own whatever
// the layer, and so that a block has room to list the groups that it finishes.
constexpr std::uint32_t kMostFeatures = kMostGroups * kGroup;
constexpr std::size_t kCountBytes = (kMostGroups + 1) * sizeof(std::uint32_t);
static_assert(kCountBytes == kExl3CountBytes);

// The parts of the workspace, each a multiple of 256 bytes, after the counts.
struct Workspace {
  std::size_t row_slices, codes, end;
};
Workspace workspace_of(const Exl3Layer& layer, std::uint32_t rows) {
  const auto round_up = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::size_t slices = slices_of(layer);
  Workspace at{};
  at.row_slices = kCountBytes + slices * rows * layer.padded_outputs * sizeof(float);
  at.codes = at.row_slices + round_up(slices * rows * sizeof(RowSlice));
  at.end = at.codes + (rows > kFewRows ? slices * rows * kSlice * sizeof(std::int16_t) : 0);
  return at;
}

// The kernel for a number of rows, or null where the GPU lacks its instructions or shared memory.
const Variant* variant_for(const Exl3Layer& layer, std::uint32_t rows, const Limits& limits) {
  const int index = rows <= 4 ? 0 : rows <= kFewRows ? 1 : 2;
  const Variant& variant = kRates[layer.double_bits][index];
  const bool runs =
      variant.shared_bytes <= limits.block_shared_bytes && (index < 2 || limits.major == 9);
  return runs ? &variant : nullptr;
}

}  // namespace

Status check_exl3_mul1(const Exl3Layer& layer) {
  const auto unfit = [](std::uint32_t size, std::uint32_t padded) {
    return padded == 0 || padded % kGroup != 0 || padded > kMostFeatures || size > padded;
  };
  if (layer.double_bits >= std::size(kRates) || kRates[layer.double_bits] == nullptr) {
    return work_error("exl3_mul1: found {} bits a weight, expected 1 to 8",
                      layer.double_bits / 2.0);
  }
  if (unfit(layer.inputs, layer.padded_inputs) || unfit(layer.outputs, layer.padded_outputs)) {
    return work_error(
        "exl3_mul1: found {} inputs and {} outputs, expected multiples of 128 up to {}",
        layer.padded_inputs, layer.padded_outputs, kMostFeatures);
  }
  return {};
}

Status exl3_mul1_arrange(const Exl3Layer& layer, const std::uint32_t* trellis,
                         std::uint32_t* weights, cudaStream_t stream) {
  ESPALIER_CHECK(check_exl3_mul1(layer));
  constexpr int kThreads = 256;
  const std::size_t words = static_cast<std::size_t>(layer.padded_inputs / 64) *
                            (layer.padded_outputs / 32) * (layer.double_bits * 32);
  exl3_mul1_arrange_kernel<<<(words + kThreads - 1) / kThreads, kThreads, 0, stream>>>(
      trellis, weights, static_cast<int>(layer.double_bits),
      static_cast<int>(layer.padded_inputs / 16), static_cast<int>(layer.padded_outputs / 16));
  return check(cudaGetLastError(), "exl3_mul1_arrange");
}

std::size_t exl3_mul1_workspace(const Exl3Layer& layer, std::uint32_t rows) {
  return workspace_of(layer, rows).end;
}

Status exl3_mul1(const Exl3Layer& layer, const float* x, std::uint32_t rows, float* y,
                 void* workspace, cudaStream_t stream) {
  ESPALIER_CHECK(check_exl3_mul1(layer));
  if (rows == 0 || rows > kExl3Rows) {
    return work_error("exl3_mul1: found {} rows, expected 1 to {}", rows, kExl3Rows);
  }
  Limits limits;
  ESPALIER_CHECK(find_limits(limits));
  const Variant* variant = variant_for(layer, rows, limits);
  if (variant == nullptr) {  // but with fewer rows at once, where a row's bits are the same
    const std::uint32_t at_once = variant_for(layer, kFewRows, limits) != nullptr ? kFewRows : 4;
    if (rows <= at_once) {
      return work_error("exl3_mul1: this GPU's blocks have too little shared memory, {} bytes",
                        limits.block_shared_bytes);
    }
    for (std::uint32_t row = 0; row < rows; row += at_once) {
      ESPALIER_CHECK(exl3_mul1(layer, x + std::size_t{row} * layer.inputs,
                               std::min(at_once, rows - row), y + std::size_t{row} * layer.outputs,
                               workspace, stream));
    }
    return {};
  }
  const Workspace at = workspace_of(layer, rows);
  auto* base = static_cast<std::uint8_t*>(workspace);
  Arguments args{};
  args.weights = layer.weights;
  args.suh = reinterpret_cast<const __half*>(layer.suh);
  args.svh = reinterpret_cast<const __half*>(layer.svh);
  args.bias = layer.bias;
  args.x = x;
  args.y = y;
  args.arrived = reinterpret_cast<std::uint32_t*>(base);
  args.partial = reinterpret_cast<float*>(base + kCountBytes);
  args.row_slices = reinterpret_cast<RowSlice*>(base + at.row_slices);
  args.codes = reinterpret_cast<std::int16_t*>(base + at.codes);
  args.rows = static_cast<int>(rows);
  args.inputs = static_cast<int>(layer.inputs);
  args.outputs = static_cast<int>(layer.outputs);
  args.padded_inputs = static_cast<int>(layer.padded_inputs);
  args.padded_outputs = static_cast<int>(layer.padded_outputs);
  ESPALIER_CHECK(
      check(cudaFuncSetAttribute(variant->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 variant->shared_bytes),
            "exl3_mul1: asking for shared memory"));
  if (rows > kFewRows) {
    ESPALIER_CHECK(launch_overlapping(exl3_mul1_prepare, dim3(slices_of(layer), rows),
                                      kPrepareThreads, 0, limits, stream, args));
  }
  return launch_overlapping(variant->kernel, dim3(limits.multiprocessors), kWarps * 32,
                            variant->shared_bytes, limits, stream, args);
}

}  // namespace espalier::gpu::cuda
