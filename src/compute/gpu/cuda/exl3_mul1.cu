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
// slice's sums, which are added slice by slice by one block for each 128 outputs.
//
// Weights: in a tile, the 32 weights of columns g and g + 8 are 32·K consecutive bits. A lane takes
// them of one of four tiles along the inputs (a quad), which makes every bit offset a constant, and
// its weights come out of the multiplication as the instruction's operand. exl3_mul1_arrange puts
// the bits that a warp reads together side by side.
#include <cuda_fp16.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

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
constexpr int kWarps = 16;   // of a block
constexpr int kGroup = 128;  // outputs that are rotated together

// A row's activations of a slice.
struct RowSlice {
  std::uint32_t most;  // the bits of the largest magnitude
  int high, low;       // the sums of the planes
  int padding;         // to 16 bytes
};

// What turns a row's sums of planes over a slice into floats.
struct RowFactors {
  float scale;
  int high, low;  // the sums of the planes, times the mean of the bytes
  float offset;
  __device__ float result(int sum_high, int sum_low) const {
    const float product =
        fmaf(static_cast<float>(sum_high - high), 256.0f, static_cast<float>(sum_low - low));
    return scale * fmaf(product, kStep, offset);
  }
};

__device__ inline RowFactors factors_of(const RowSlice& row) {
  const float sum = fmaf(static_cast<float>(row.high), 256.0f, static_cast<float>(row.low));
  return {__uint_as_float(row.most) * (kHadamardScale / kLargest), kMeanBytes * row.high,
          kMeanBytes * row.low, sum * kOffset};
}

// A part's matrix.
struct MatrixArguments {
  const std::uint32_t* weights;
  const __half* suh;
  const __half* svh;
  const float* bias;
  float* y;
  int outputs;
};

// Outputs are those of all parts, padded, one part after the other.
struct Arguments {
  MatrixArguments matrices[kMostParts];
  int first_outputs[kMostParts + 1];  // of each part; of those that are not there, the end of all
  const float* x;
  int* arrived;    // [groups]: units of work done; zero between calls
  float* partial;  // [slices, rows, padded_outputs]
  int parts, rows, inputs, padded_inputs, padded_outputs;
  bool aligned;  // whether four activations can be read at once
};

// The part that has an output.
__device__ inline int part_of(const Arguments& args, int output) {
  int part = 0;
#pragma unroll
  for (int i = 1; i < static_cast<int>(kMostParts); ++i) {
    if (output >= args.first_outputs[i]) part = i;
  }
  return part;
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
__device__ inline void load_run(float (&values)[4], const Arguments& args, const __half* suh,
                                int row, int k) {
  const uint2 packed = *reinterpret_cast<const uint2*>(suh + k);
  const float2 a = __half22float2(reinterpret_cast<const __half2&>(packed.x));
  const float2 b = __half22float2(reinterpret_cast<const __half2&>(packed.y));
  const float scale[4] = {a.x, a.y, b.x, b.y};
  const float* x = args.x + static_cast<std::size_t>(row) * args.inputs + k;
  if (args.aligned) {
    const float4 four = k < args.inputs ? *reinterpret_cast<const float4*>(x) : float4{};
    values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = k + i < args.inputs ? x[i] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] *= scale[i];
}

// The bits of a warp's largest magnitude; of a NaN, where one is not finite, which makes the
// slice's factor a NaN and with that the row.
__device__ inline std::uint32_t largest_bits(const float (&values)[4]) {
  constexpr std::uint32_t kInfinity = 0x7f800000;
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = max(largest, __float_as_uint(values[i]) & 0x7fffffffu);
  largest = __reduce_max_sync(~0u, largest);
  return largest < kInfinity ? largest : kInfinity + 1;
}

// The planes of four 16-bit activations, code = 256 · high + low, each byte four times.
struct Planes {
  std::uint32_t high[4], low[4];
};

// Scales to 16 bits, and adds up the warp's planes in a row's slice.
__device__ inline Planes quantize(const float (&values)[4], RowSlice* row, int lane) {
  const float largest = __uint_as_float(row->most);
  const float to_code = largest > 0 ? kLargest / largest : 0.0f;
  // Of 1.5 · 2²³ and something less than 2²², the lower bits are that, rounded.
  constexpr float kRound = 12582912.0f;
  Planes planes;
  std::uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bits[i] = __float_as_uint(fmaf(values[i], to_code, kRound));
    planes.low[i] = __byte_perm(bits[i], 0, 0x0000);
    bits[i] += 128;
    planes.high[i] = __byte_perm(bits[i], 0, 0x1111);
  }
  const auto sum = [](const std::uint32_t(&words)[4]) {  // of a byte of each
    const std::uint32_t two = __byte_perm(words[0], words[1], 0x0040);
    return __dp4a(
        static_cast<int>(__byte_perm(two, __byte_perm(words[2], words[3], 0x0040), 0x5410)),
        0x01010101, 0);
  };
  // Of 128 values each sum is within 16 bits, so both go in one.
  const int both = __reduce_add_sync(~0u, sum(planes.high) * 65536 + sum(planes.low));
  if (lane == 0) {
    const int low = static_cast<std::int16_t>(both);
    atomicAdd(&row->high, (both - low) >> 16);
    atomicAdd(&row->low, low);
  }
  return planes;
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
// block has a contiguous run of units (slice by slice, in each part by part), which it does in
// rounds of units of one slice and part, whose operand is in shared memory. The items of a round,
// each a unit in one quad, are dealt to teams of warps in contiguous shares, and the teams' sums
// meet in shared memory.
template <int kUnitPairs_, int kTeamWarps_, int kFragments_, int kSliceStart_>
struct Division {
  static constexpr int kUnitPairs = kUnitPairs_;
  static constexpr int kTeamWarps = kTeamWarps_;  // each with the same number of pairs
  static constexpr int kFragments = kFragments_;
  static constexpr int kSliceStart = kSliceStart_;
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
  const Arguments& args;
  int slice_units, total_quads, team;
  int slice, unit, left;              // of the block
  int part, units, quads, item, end;  // of the round; of the team's share

  __device__ Cursor(const Arguments& args, int first, int last) : args(args) {
    slice_units = args.padded_outputs / D::kUnitOutputs;
    total_quads = args.padded_inputs / 64;
    team = threadIdx.x / (32 * D::kTeamWarps);
    slice = first / slice_units;
    unit = first % slice_units;
    left = last - first;
    if (left > 0) start_round();
  }
  __device__ void start_round() {
    part = part_of(args, unit * D::kUnitOutputs);
    const int part_end = args.first_outputs[part + 1] / D::kUnitOutputs;
    units = min(D::kRoundUnits, min(left, part_end - unit));
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
  Cursor<D> at;
  const std::uint32_t* from = nullptr;
  int run = 0;  // items to read before the unit ends, or the round

  __device__ explicit Fetcher(const Cursor<D>& start) : at(start) { seek(); }
  __device__ void seek() {
    while (at.left > 0 && at.item == at.end) at.next_round();
    if (at.left <= 0) return;
    const int unit = at.item_unit();
    const int quad = at.item - unit * at.quads;
    run = min(at.quads - quad, at.end - at.item);
    at.item += run;
    // Pairs of tiles lie in twos, quad by quad.
    const int pair = (at.unit + unit) * D::kUnitPairs + team_warp<D>() * D::kWarpPairs -
                     at.args.first_outputs[at.part] / 32;
    const std::size_t two =
        static_cast<std::size_t>(pair / 2) * at.total_quads + at.slice * kSliceQuads + quad;
    from = at.args.matrices[at.part].weights + (two * 2 + pair % 2) * kPairWords;
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

// All items of a team's share of a round. `multiply` adds an item's products to `acc`.
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
    multiply(now, quad, acc);
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
__device__ inline void write_round(int* sums, const RowFactors* rows, const Arguments& args,
                                   const Cursor<D>& at) {
  const int tasks = at.units * D::kUnitOutputs * D::kFragments;
  for (int task = threadIdx.x; task < tasks; task += kWarps * 32) {
    const int eight = task / (8 * D::kFragments);  // of columns
    const int fragment = task / 8 % D::kFragments;
    const int column = task % 8;
    // Register 0 and 1 of a lane: output lane / 4, planes of row lane % 4. Registers 2 and 3: the
    // output 8 further.
    int* from =
        sums + eight / 2 * (D::kFragments * 128) + fragment * 128 + eight % 2 * 64 + column * 4;
    int4* high_at = reinterpret_cast<int4*>(from);
    int4* low_at = reinterpret_cast<int4*>(from + 32);
    const int4 high4 = *high_at;
    const int4 low4 = *low_at;
    *high_at = *low_at = make_int4(0, 0, 0, 0);
    const int high[4] = {high4.x, high4.y, high4.z, high4.w};
    const int low[4] = {low4.x, low4.y, low4.z, low4.w};
    const int first_row = fragment * kRowsPerFragment;
    float* to = args.partial +
                (static_cast<std::size_t>(at.slice) * args.rows + first_row) * args.padded_outputs +
                at.unit * D::kUnitOutputs + eight * 8 + column;
#pragma unroll
    for (int r = 0; r < kRowsPerFragment; ++r) {
      if (first_row + r >= args.rows) break;
      __stcg(to, rows[first_row + r].result(high[r], low[r]));
      to += args.padded_outputs;
    }
  }
}

// Lists of groups of 128 outputs, in shared memory: each its length, then the groups.
constexpr std::uint32_t kMostGroups = 4095;
struct GroupList {
  int length;
  int groups[kMostGroups];
  __device__ void add(int group) { groups[atomicAdd(&length, 1)] = group; }
};
struct GroupLists {
  GroupList completed;  // by this block
  GroupList watched;    // that this block is to finish, whoever completes them
  GroupList claimed;    // that this block does finish
};

// Counts the block's units in the groups that they belong to, and lists those of which all units
// are done with that, and those which it is to watch: where a group's first unit of one of the
// slices, another for each group, is the block's.
template <typename D>
__device__ inline void arrive(GroupLists* lists, const Arguments& args, int first, int last,
                              int slices, bool watching) {
  constexpr int kGroupUnits = kGroup / D::kUnitOutputs;
  const int slice_units = args.padded_outputs / D::kUnitOutputs;
  for (int group = threadIdx.x; group < args.padded_outputs / kGroup; group += kWarps * 32) {
    int units = 0;
    for (int slice = first / slice_units; slice * slice_units < last; ++slice) {
      const int begin = slice * slice_units + group * kGroupUnits;
      units += max(0, min(last, begin + kGroupUnits) - max(first, begin));
    }
    if (units == 0) continue;
    __threadfence();  // the sums before the count
    const int before = atomicAdd(args.arrived + group, units);
    if (before + units == slices * kGroupUnits) {
      if (watching) {
        lists->completed.add(group);
      } else {
        args.arrived[group] = 0;
        lists->claimed.add(group);
        __threadfence();  // the count before the others' sums
      }
    }
    const int watch = group % slices * slice_units + group * kGroupUnits;
    if (watch >= first && watch < last) lists->watched.add(group);
  }
}

// Claims those groups of a list that are complete and that no other block has claimed; waits up to
// so many cycles for the others.
__device__ inline void claim(GroupLists* lists, const GroupList& wanted, const Arguments& args,
                             int complete, long long patience) {
  for (int i = threadIdx.x; i < wanted.length; i += kWarps * 32) {
    const int group = wanted.groups[i];
    const long long start = clock64();
    int count;
    do {
      count = atomicCAS(args.arrived + group, complete, 0);
    } while (count != complete && count != 0 && clock64() - start < patience);
    if (count != complete) continue;
    lists->claimed.add(group);
    __threadfence();  // the count before the others' sums
  }
}

// Adds up the slices of a claimed group's row in order, rotates and scales. A warp each.
__device__ inline void finish_rows(const GroupList& claimed, const Arguments& args, int slices) {
  constexpr int kTogether = 8;  // slices whose loads overlap
  const int lane = threadIdx.x % 32;
  const int tasks = claimed.length * args.rows;
  for (int task = threadIdx.x / 32; task < tasks; task += kWarps) {
    const int row = task % args.rows;
    const int place = claimed.groups[task / args.rows] * kGroup + lane * 4;
    const int part = part_of(args, place);
    const MatrixArguments& matrix = args.matrices[part];
    const int first = place - args.first_outputs[part];
    const float* from = args.partial + static_cast<std::size_t>(row) * args.padded_outputs + place;
    const std::size_t slice_floats = static_cast<std::size_t>(args.rows) * args.padded_outputs;
    const uint2 packed = *reinterpret_cast<const uint2*>(matrix.svh + first);
    float values[4] = {};
    for (int slice = 0; slice < slices; slice += kTogether) {
      float4 four[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        four[i] = slice + i < slices
                      ? __ldcg(reinterpret_cast<const float4*>(from + (slice + i) * slice_floats))
                      : float4{};
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        values[0] += four[i].x, values[1] += four[i].y;
        values[2] += four[i].z, values[3] += four[i].w;
      }
    }
    hadamard(values, lane);
    const float2 a = __half22float2(reinterpret_cast<const __half2&>(packed.x));
    const float2 b = __half22float2(reinterpret_cast<const __half2&>(packed.y));
    const float scale[4] = {a.x, a.y, b.x, b.y};
    float* y = matrix.y + static_cast<std::size_t>(row) * matrix.outputs;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = values[i] * (scale[i] * kHadamardScale);
      const int output = first + i;
      if (output >= matrix.outputs) continue;
      y[output] = value + (matrix.bias != nullptr ? matrix.bias[output] : 0);
    }
  }
}

// What a block does after its products. All blocks end at about the same time, so that the last of
// them completes all of its groups. It finishes them itself where they are few; where they are
// many, there is for each group a block that watches it. A watcher's patience is bounded, and
// groups that are left over are finished by the block that completed them: no block depends on
// another that may not be running.
template <typename D>
__device__ inline void finish(std::uint8_t* memory, const Arguments& args, int first, int last) {
  constexpr int kGroupUnits = kGroup / D::kUnitOutputs;
  constexpr long long kPatience = 40000;  // cycles
  const int slices = (args.padded_inputs / 64 + kSliceQuads - 1) / kSliceQuads;
  const int complete = slices * kGroupUnits;
  const int block_groups = args.padded_outputs / kGroup * slices / gridDim.x;
  auto* lists = reinterpret_cast<GroupLists*>(memory);
  if (threadIdx.x == 0) {
    lists->completed.length = lists->watched.length = lists->claimed.length = 0;
  }
  __syncthreads();
  const bool watching = block_groups * args.rows > kWarps;  // the same for all blocks
  arrive<D>(lists, args, first, last, slices, watching);
  __syncthreads();
  if (watching) {
    claim(lists, lists->watched, args, complete, kPatience);
    __syncthreads();
    finish_rows(lists->claimed, args, slices);
    __syncthreads();
    if (threadIdx.x == 0) lists->claimed.length = 0;
    __syncthreads();
    claim(lists, lists->completed, args, complete, 0);
    __syncthreads();
  }
  finish_rows(lists->claimed, args, slices);
}

template <typename D>
__device__ inline void clear(int* sums) {
  for (int i = threadIdx.x; i < D::kSumsBytes / 16; i += kWarps * 32) {
    reinterpret_cast<int4*>(sums)[i] = make_int4(0, 0, 0, 0);
  }
}

// A block's first unit. A block that goes on to another slice or part has less to multiply, as it
// rotates its activations too, which takes about as long as kSliceStart units.
template <typename D>
__device__ inline int first_unit(const Arguments& args, unsigned block) {
  const int slices = (args.padded_inputs / 64 + kSliceQuads - 1) / kSliceQuads;
  const int slice_units = args.padded_outputs / D::kUnitOutputs;
  const int slice_length = slice_units + args.parts * D::kSliceStart;
  const int place =
      static_cast<int>(static_cast<long long>(slice_length) * slices * block / gridDim.x);
  const int in_slice = place % slice_length;
  int unit = 0;
#pragma unroll
  for (int part = 0; part < static_cast<int>(kMostParts); ++part) {
    const int first = args.first_outputs[part] / D::kUnitOutputs;
    const int after_start = in_slice - first - (part + 1) * D::kSliceStart;
    if (after_start >= -D::kSliceStart) unit = first + max(0, after_start);
  }
  return place / slice_length * slice_units + unit;
}

// Rotates the rows' activations of a slice and leaves the product's operand. A warp for each run of
// 128 of a row at a time. `rows` is clear before.
template <typename Product>
__device__ inline void prepare(std::uint8_t* operand, RowSlice* rows, const Arguments& args,
                               const __half* suh, int slice) {
  constexpr int kRuns = kSlice / 128;
  constexpr int kRowStep = kWarps / kRuns;
  constexpr int kTasks = Product::D::kMostRows / kRowStep;
  constexpr int kTogether = kTasks > 2 ? 4 : 1;  // whose latencies overlap
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int in_slice = warp % kRuns * 128 + lane * 4;
  const int k = slice * kSlice + in_slice;
  const bool inside = k < args.padded_inputs;  // the same for all of a warp
  const int first_row = warp / kRuns;
  float values[kTasks][4] = {};
  if (inside) {
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
      const int row = first_row + task * kRowStep;
      if (row < args.rows) load_run(values[task], args, suh, row, k);
    }
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
      const int row = first_row + task * kRowStep;
      if (task % kTogether == 0 && row >= args.rows) break;
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
      if (task % kTogether == 0 && row >= args.rows) break;
      Product::put(operand, row, in_slice, quantize(values[task], rows + row, lane));
    }
  }
}

// What multiplies items: the operand in shared memory, where `put` leaves four activations of a
// row, each four times.

// Up to 8 rows: mma.sync.
template <int kDoubleBits, int kFragments>
struct FewRows {
  static constexpr int kBits = kDoubleBits;
  // A warp takes two pairs of tiles where its registers hold their bits and sums.
  static constexpr int kPairs = kFragments > 1 || kDoubleBits > 12 ? 1 : 2;
  using D = Division<kPairs, 1, kFragments, kPairs == 1 ? 2 : 1>;
  using Tiles = TilePair<kDoubleBits>[D::kWarpPairs];
  using Sums = int[D::kWarpPairs * 2][kFragments][4];

  // [fragments, quads, 4 words of each lane, 32]. Word `pair` of tile `tile` holds inputs 2·pair,
  // 2·pair + 1, 2·pair + 8 and 2·pair + 9 of it. The padding after two words keeps the writes of
  // half a warp in different banks.
  static constexpr int kQuadWords = 4 * 32 + 4;
  static constexpr int kOperandBytes = kFragments * kSliceQuads * kQuadWords * 16;
  static __device__ int word(int fragment, int quad, int pair) {
    return (fragment * kSliceQuads + quad) * kQuadWords + pair * 32 + pair / 2 * 4;
  }
  static __device__ void put(std::uint8_t* operand, int row, int in_slice, const Planes& planes) {
    const int column = row % kRowsPerFragment * 2;
    const int upper_half = in_slice / 8 % 2;
    auto* to = reinterpret_cast<uint2*>(operand) + column * 8 + in_slice / 16 % 4 * 2 + upper_half;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = word(row / kRowsPerFragment, in_slice / 64, in_slice % 8 / 2 + i) * 2;
      to[at] = make_uint2(planes.high[2 * i], planes.high[2 * i + 1]);
      to[at + 8] = make_uint2(planes.low[2 * i], planes.low[2 * i + 1]);
    }
  }
  static __device__ void publish() {}

  const uint4* operand;
  int lane;

  __device__ explicit FewRows(const std::uint8_t* memory)
      : operand(reinterpret_cast<const uint4*>(memory) + threadIdx.x % 32),
        lane(threadIdx.x % 32) {}
  static __device__ void multiply(int (&sums)[4], std::uint32_t a0, std::uint32_t a1,
                                  std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                  std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  __device__ void operator()(Tiles& now, int quad, Sums& acc) const {
    const uint4* b = operand + word(0, quad, 0);
#pragma unroll
    for (int j = 0; j < D::kWarpPairs; ++j) now[j].find_start(lane);
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      uint4 x[kFragments];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) x[f] = b[word(f, 0, eight)];
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
  }
};

// 9 to 16 rows on Hopper: wgmma, whose four warps hold 16 outputs each and which reads the operand
// from shared memory. (Where there is no wgmma, the kernel is compiled, but not called.)
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

template <int kDoubleBits>
struct ManyRows {
  static constexpr int kBits = kDoubleBits;
  static constexpr int kFragments = 4;
  using D = Division<4, 4, kFragments, 1>;
  using Tiles = TilePair<kDoubleBits>[1];
  using Sums = int[2][kFragments][4];

  // For each quad and input of a tile a block of [fragments, 8 columns, 4 tiles]: two of wgmma's
  // core matrices lie one such block apart. The padding keeps the writes of a warp in different
  // banks.
  static constexpr int kInputBytes = kFragments * 128;
  static constexpr int kQuadBytes = 16 * kInputBytes + 64;
  static constexpr int kOperandBytes = kQuadBytes * kSliceQuads;
  static __device__ int at(int quad, int input) {
    return quad * kQuadBytes + input * kInputBytes + input / 4 * 16;
  }
  static __device__ void put(std::uint8_t* operand, int row, int in_slice, const Planes& planes) {
    std::uint8_t* to = operand + row / kRowsPerFragment * 128 + row % kRowsPerFragment * 32 +
                       in_slice / 16 % 4 * 4 + at(in_slice / 64, in_slice % 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      auto* word = reinterpret_cast<std::uint32_t*>(to + at(0, i));
      word[0] = planes.high[i];
      word[4] = planes.low[i];
    }
  }
  static __device__ void publish() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // writes, then wgmma's reads
#endif
  }

  // The low word of a descriptor of the operand: how far core matrices lie apart along the inputs,
  // and where; both in 16 bytes. In its upper word how far apart along the columns.
  std::uint32_t where;
  static constexpr std::uint64_t kColumns = std::uint64_t{128 / 16} << 32;

  __device__ explicit ManyRows(const std::uint8_t* memory)
      : where(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)) >> 4 |
              static_cast<std::uint32_t>(kInputBytes / 16) << 16) {}
  __device__ void operator()(Tiles& now, int quad, Sums& acc) const {
    now[0].find_start(threadIdx.x % 32);
    // Taken from lane 0, which tells the compiler that it is the same in all.
    const std::uint32_t at_quad = __shfl_sync(~0u, where + at(quad, 0) / 16, 0);
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      std::uint32_t w[2][8];
#pragma unroll
      for (int i = 0; i < 16; ++i) w[i / 8][i % 8] = now[0].product(i / 8, eight * 8 + i % 8);
      const std::uint64_t low = kColumns | (at_quad + at(0, 2 * eight) / 16);
      const std::uint64_t high = kColumns | (at_quad + at(0, 2 * eight + 8) / 16);
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
  }
};

template <typename Product>
constexpr int kSharedBytes = Product::kOperandBytes + Product::D::kSumsBytes;

template <typename Product>
__global__ void __launch_bounds__(kWarps * 32, 1) exl3_mul1_kernel(const Arguments args) {
  using D = typename Product::D;
  static_assert(kSharedBytes<Product> >= sizeof(GroupLists), "finish keeps its lists there");
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ RowSlice rows[D::kMostRows];
  __shared__ RowFactors factors[D::kMostRows];
  int* sums = reinterpret_cast<int*>(memory + Product::kOperandBytes);

  const int first = first_unit<D>(args, blockIdx.x);
  const int last = first_unit<D>(args, blockIdx.x + 1);
  Cursor<D> at(args, first, last);
  // The weights do not depend on the kernel before.
  Fetcher<Product::kBits, D> fetcher(at);
  typename Product::Tiles tiles;
  fetcher.fetch(tiles);
  clear<D>(sums);
  let_the_next_kernel_start();
  wait_for_the_kernel_before();

  const Product product(memory);
  typename Product::Sums acc = {};
  int loaded_slice = -1;
  int loaded_part = -1;
  while (at.left > 0) {
    if (at.slice != loaded_slice || at.part != loaded_part) {
      if (threadIdx.x < D::kMostRows) rows[threadIdx.x] = {};
      __syncthreads();
      prepare<Product>(memory, rows, args, args.matrices[at.part].suh, at.slice);
      Product::publish();
      __syncthreads();
      if (threadIdx.x < D::kMostRows) factors[threadIdx.x] = factors_of(rows[threadIdx.x]);
      loaded_slice = at.slice;
      loaded_part = at.part;
    }
    run_share<Product::kBits, D>(at, fetcher, tiles, acc, sums, product);
    __syncthreads();
    write_round<D>(sums, factors, args, at);
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

template <typename Product>
constexpr Variant kVariant = {exl3_mul1_kernel<Product>, kSharedBytes<Product>};

// For up to 4, 8 and 16 rows.
template <int kDoubleBits>
constexpr Variant kVariants[] = {kVariant<FewRows<kDoubleBits, 1>>,
                                 kVariant<FewRows<kDoubleBits, 2>>,
                                 kVariant<ManyRows<kDoubleBits>>};

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
constexpr std::size_t kCountBytes = (kMostGroups + 1) * sizeof(int);
static_assert(kCountBytes == kExl3CountBytes);

constexpr std::uint32_t kFewRows = 8;  // the most of which mma.sync multiplies

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

Status check_exl3_mul1(std::span<const Exl3Part> parts) {
  if (parts.empty() || parts.size() > kMostParts) {
    return work_error("exl3_mul1: found {} parts, expected 1 to {}", parts.size(), kMostParts);
  }
  const Exl3Layer& first = parts.front().layer;
  std::uint64_t outputs = 0;
  for (const Exl3Part& part : parts) {
    ESPALIER_CHECK(check_exl3_mul1(part.layer));
    if (part.layer.double_bits != first.double_bits || part.layer.inputs != first.inputs ||
        part.layer.padded_inputs != first.padded_inputs) {
      return work_error("exl3_mul1: found parts of different rates or numbers of inputs");
    }
    outputs += part.layer.padded_outputs;
  }
  if (outputs > kMostFeatures) {
    return work_error("exl3_mul1: found {} outputs in all, expected at most {}", outputs,
                      kMostFeatures);
  }
  return {};
}

std::size_t exl3_mul1_workspace(std::span<const Exl3Part> parts, std::uint32_t rows) {
  std::size_t outputs = 0;
  for (const Exl3Part& part : parts) outputs += part.layer.padded_outputs;
  return kCountBytes + sizeof(float) * slices_of(parts.front().layer) * rows * outputs;
}

Status exl3_mul1(std::span<const Exl3Part> parts, const float* x, std::uint32_t rows,
                 void* workspace, cudaStream_t stream) {
  ESPALIER_CHECK(check_exl3_mul1(parts));
  if (rows == 0 || rows > kExl3Rows) {
    return work_error("exl3_mul1: found {} rows, expected 1 to {}", rows, kExl3Rows);
  }
  const Exl3Layer& layer = parts.front().layer;
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
      std::vector<Exl3Part> some(parts.begin(), parts.end());
      for (Exl3Part& part : some) part.y += std::size_t{row} * part.layer.outputs;
      ESPALIER_CHECK(exl3_mul1(some, x + std::size_t{row} * layer.inputs,
                               std::min(at_once, rows - row), workspace, stream));
    }
    return {};
  }
  auto* base = static_cast<std::uint8_t*>(workspace);
  Arguments args{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Exl3Layer& part = parts[i].layer;
    args.matrices[i] = {.weights = part.weights,
                        .suh = reinterpret_cast<const __half*>(part.suh),
                        .svh = reinterpret_cast<const __half*>(part.svh),
                        .bias = part.bias,
                        .y = parts[i].y,
                        .outputs = static_cast<int>(part.outputs)};
    args.first_outputs[i] = args.padded_outputs;
    args.padded_outputs += static_cast<int>(part.padded_outputs);
  }
  std::fill(args.first_outputs + parts.size(), std::end(args.first_outputs), args.padded_outputs);
  args.parts = static_cast<int>(parts.size());
  args.x = x;
  args.arrived = reinterpret_cast<int*>(base);
  args.partial = reinterpret_cast<float*>(base + kCountBytes);
  args.rows = static_cast<int>(rows);
  args.inputs = static_cast<int>(layer.inputs);
  args.padded_inputs = static_cast<int>(layer.padded_inputs);
  args.aligned = layer.inputs % 4 == 0 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  ESPALIER_CHECK(
      check(cudaFuncSetAttribute(variant->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 variant->shared_bytes),
            "exl3_mul1: asking for shared memory"));
  return launch_overlapping(variant->kernel, dim3(limits.multiprocessors), kWarps * 32,
                            variant->shared_bytes, limits, stream, args);
}

}  // namespace espalier::gpu::cuda
