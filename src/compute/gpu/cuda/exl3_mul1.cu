// How EXL3's MUL1 product runs on integer tensor cores.
//
// A MUL1 weight is affine in the sum of the four bytes of state · 0x83dcd12d. The product goes as
// it is into m16n8k32 (u8 × s8 → s32), whose other operand holds the activation of that weight four
// times: the instruction adds up the bytes.
//
// Activations: rotated, scaled to 16 bits by one factor for each row and slice of 1,024 inputs, and
// fed as two planes of s8, columns 2r and 2r + 1 of a fragment of 8. So a fragment serves 4 rows,
// and all sums over a slice are exact integers, whose order does not matter: neither the division
// of the work nor the number of rows changes a bit. Floats begin with a slice's sums, which are
// added slice by slice by the block that completes 128 outputs.
//
// Weights: in a tile, the 32 weights of columns g and g + 8 are 32·K consecutive bits. A lane takes
// them of one of four tiles along the inputs (a quad), which makes every bit offset a constant, and
// its weights come out of the multiplication as the instruction's operand. exl3_mul1_arrange puts
// the bits that a warp reads together side by side.
#include <cuda_fp16.h>

#include <algorithm>
#include <string>

#include "compute/gpu/cuda/exl3_mul1.h"

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
constexpr int kFragmentWords = 128;  // of four activations each, of a quad
constexpr int kWarps = 16;
constexpr int kGroup = 128;  // outputs that are rotated together

// What a block knows of a row's activations of the slice that it works on.
struct RowSlice {
  std::uint32_t most;  // the bits of the largest magnitude
  int high, low;       // the sums of the planes
};

struct Arguments {
  const std::uint32_t* weights;
  const __half* suh;
  const __half* svh;
  const float* bias;
  const float* x;
  float* y;
  std::uint32_t* arrived;  // [groups]: units added up; zero between calls
  float* partial;          // [slices, rows, padded_outputs]
  int rows, inputs, outputs, padded_inputs, padded_outputs, slices;
};

// What a kernel of a chain does before it reads what the one before it wrote, and once those after
// it may start: on GPUs that can, kernels of a stream overlap so far.
__device__ inline void wait_for_the_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_the_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
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

__device__ inline void multiply(int (&sums)[4], std::uint32_t a0, std::uint32_t a1,
                                std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
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

// The layout of a block's shared memory and the division of the work.
template <int kDoubleBits, int kFragments>
struct Plan {
  static constexpr int kPairWords = kDoubleBits * 32;  // of a pair of tiles in a quad
  // Pairs of tiles of a unit of work, which goes over a whole slice.
  static constexpr int kPairs =
      kFragments > 2 || kDoubleBits* kFragments > 16 || kDoubleBits > 12 ? 1 : 2;
  static constexpr int kUnitOutputs = kPairs * 32;
  static constexpr int kUnitsPerGroup = kGroup / kUnitOutputs;
  static constexpr int kUnitSums = kPairs * 2 * kFragments * 128;
  static constexpr int kOperandBytes = kFragments * kSliceQuads * kFragmentWords * 16;
  // Most units are long done when a round of them ends; at most 96 KB of sums.
  static constexpr int kRoundUnits = std::min(32, 96 * 1024 / (kUnitSums * 4));
  static constexpr int kSharedBytes = kOperandBytes + kRoundUnits * kUnitSums * 4;
};

// A warp's place in the block's run of units, which is cut into rounds of units of one slice. The
// items of a round, each a unit in one quad, are dealt to the warps in contiguous shares.
template <typename Plan>
struct Cursor {
  int slice, unit, left;        // of the block; `unit` within the slice
  int units, quads, item, end;  // of the round; of the warp
  int slice_units, total_quads, warp;

  __device__ void start_round() {
    units = min(Plan::kRoundUnits, min(left, slice_units - unit));
    quads = min(kSliceQuads, total_quads - slice * kSliceQuads);
    const int items = units * quads;
    item = items * warp / kWarps;
    end = items * (warp + 1) / kWarps;
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

// Reads a lane's bits of one item after the other, ahead of the products.
template <int kDoubleBits, typename Plan>
struct Fetcher {
  const std::uint32_t* weights;
  int lane;
  Cursor<Plan> at;
  const std::uint32_t* from = nullptr;
  int run = 0;  // items to read before the unit ends, or the round

  __device__ Fetcher(const Arguments& args, const Cursor<Plan>& start, int lane_index)
      : weights(args.weights), lane(lane_index), at(start) {
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
    const int pair = (at.unit + unit) * Plan::kPairs;
    const std::size_t two =
        static_cast<std::size_t>(pair / 2) * at.total_quads + at.slice * kSliceQuads + quad;
    from = weights + (two * 2 + pair % 2) * Plan::kPairWords;
  }
  __device__ void fetch(TilePair<kDoubleBits> (&to)[Plan::kPairs]) {
    if (at.left <= 0) return;
#pragma unroll
    for (int j = 0; j < Plan::kPairs; ++j) to[j].read(from + j * Plan::kPairWords, lane);
    from += 2 * Plan::kPairWords;
    if (--run == 0) seek();
  }
};

// Rotates the rows' activations of a slice and leaves the product's operand, each activation four
// times. A warp for each run of 128 of a row at a time. Ends with a barrier; `rows` is clear
// before.
template <int kFragments>
__device__ inline void prepare(uint4* operand, RowSlice* rows, const Arguments& args, int slice) {
  constexpr int kRuns = kSlice / 128;
  constexpr int kTasks = kFragments * kRowsPerFragment * kRuns / kWarps;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int in_slice = warp % kRuns * 128 + lane * 4;
  const int k = slice * kSlice + in_slice;
  const bool inside = k < args.padded_inputs;  // the same for all of a warp
  const int first_row = warp / kRuns;
  constexpr int kRowStep = kWarps / kRuns;
  float values[kTasks][4] = {};
  if (inside) {
    const uint2 packed = *reinterpret_cast<const uint2*>(args.suh + k);
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
      const int row = first_row + task * kRowStep;
      if (row >= args.rows) break;
      const float* x = args.x + static_cast<std::size_t>(row) * args.inputs;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (k + i < args.inputs) values[task][i] = x[k + i];
      }
    }
    const float2 a = __half22float2(reinterpret_cast<const __half2&>(packed.x));
    const float2 b = __half22float2(reinterpret_cast<const __half2&>(packed.y));
    const float scale[4] = {a.x, a.y, b.x, b.y};
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
      const int row = first_row + task * kRowStep;
      if (row >= args.rows) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) values[task][i] *= scale[i];
      hadamard(values[task], lane);
      float largest = 0;
      bool finite = true;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        largest = fmaxf(largest, fabsf(values[task][i]));
        finite = finite && fabsf(values[task][i]) <= 3.4e38f;
      }
      // What is not finite makes the slice's scale a NaN, and with that the row.
      const std::uint32_t bits =
          __reduce_max_sync(~0u, finite ? __float_as_uint(largest) : 0x7fc00000u);
      if (lane == 0) atomicMax(&rows[row].most, bits);
    }
  }
  __syncthreads();
  if (inside) {
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
      const int row = first_row + task * kRowStep;
      if (row >= args.rows) break;
      const float largest = __uint_as_float(rows[row].most);
      const float to_code = largest > 0 ? kLargest / largest : 0.0f;
      std::uint32_t high[4];
      std::uint32_t low[4];
      int high_sum = 0;
      int low_sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int code = __float2int_rn(values[task][i] * to_code);
        const int upper = (code + 128) >> 8;
        const int lower = code - upper * 256;
        high_sum += upper;
        low_sum += lower;
        high[i] = __byte_perm(upper, 0, 0);
        low[i] = __byte_perm(lower, 0, 0);
      }
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
        to[i * 64 + upper_half] = make_uint2(high[2 * i], high[2 * i + 1]);
        to[i * 64 + 8 + upper_half] = make_uint2(low[2 * i], low[2 * i + 1]);
      }
      high_sum = __reduce_add_sync(~0u, high_sum);
      low_sum = __reduce_add_sync(~0u, low_sum);
      if (lane == 0) {
        atomicAdd(&rows[row].high, high_sum);
        atomicAdd(&rows[row].low, low_sum);
      }
    }
  }
  __syncthreads();
}

// The sums of a round's outputs, [units, tiles, fragments, 4, 32] as the tensor cores leave them,
// to floats of this slice. Clears them.
template <typename Plan, int kFragments>
__device__ inline void write_round(int* sums, const RowSlice* rows, const Arguments& args,
                                   const Cursor<Plan>& at) {
  const int columns = at.units * Plan::kUnitOutputs;
  for (int column = threadIdx.x; column < columns; column += kWarps * 32) {
    // Register 0 and 1 of a lane: its group's output, columns 2·(lane mod 4) and one more: a row's
    // two planes. Registers 2 and 3: the output 8 further.
    int* of_column =
        sums + (column / 16) * (kFragments * 128) + column / 8 % 2 * 64 + column % 8 * 4;
    float* to = args.partial +
                static_cast<std::size_t>(at.slice) * args.rows * args.padded_outputs +
                at.unit * Plan::kUnitOutputs + column;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
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
template <typename Plan>
__device__ inline void arrive(int* completed, const Arguments& args, int first, int last) {
  const int slice_units = args.padded_outputs / Plan::kUnitOutputs;
  const int groups = args.padded_outputs / kGroup;
  for (int group = threadIdx.x; group < groups; group += kWarps * 32) {
    int units = 0;
    for (int slice = first / slice_units; slice < args.slices; ++slice) {
      const int begin = slice * slice_units + group * Plan::kUnitsPerGroup;
      if (slice * slice_units >= last) break;
      units += max(0, min(last, begin + Plan::kUnitsPerGroup) - max(first, begin));
    }
    if (units == 0) continue;
    __threadfence();  // the sums before the count
    const std::uint32_t before = atomicAdd(args.arrived + group, static_cast<std::uint32_t>(units));
    if (before + units != static_cast<std::uint32_t>(args.slices * Plan::kUnitsPerGroup)) continue;
    args.arrived[group] = 0;
    completed[1 + atomicAdd(completed, 1)] = group;
    __threadfence();  // the count before the others' sums
  }
}

// Adds up the slices of a group's row in order, rotates and scales. Half a warp each.
__device__ inline void finish_rows(const int* completed, const Arguments& args) {
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
    for (int slice = 0; slice < args.slices; ++slice) {
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

// The products of one item.
template <int kDoubleBits, int kFragments, int kPairs>
__device__ inline void multiply_item(int (&acc)[kPairs * 2][kFragments][4],
                                     TilePair<kDoubleBits> (&bits)[kPairs], const uint4* operand,
                                     int lane) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) bits[j].find_start(lane);
#pragma unroll
  for (int eight = 0; eight < 4; ++eight) {
    uint4 x[kFragments];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      x[f] = operand[f * (kSliceQuads * kFragmentWords) + eight * 32 + lane];
    }
#pragma unroll
    for (int j = 0; j < kPairs * 2; ++j) {
      std::uint32_t w[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) w[i] = bits[j / 2].product(j % 2, eight * 8 + i);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        multiply(acc[j][f], w[0], w[4], w[1], w[5], x[f].x, x[f].y);
        multiply(acc[j][f], w[2], w[6], w[3], w[7], x[f].z, x[f].w);
      }
    }
  }
}

// Rotation, product and rotation. As many blocks as run at once, each with its share of the units
// (slice by slice, along the outputs).
template <int kDoubleBits, int kFragments>
__global__ void __launch_bounds__(kWarps * 32, 1) exl3_mul1_product(const Arguments args) {
  using P = Plan<kDoubleBits, kFragments>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ RowSlice rows[kFragments * kRowsPerFragment];
  uint4* operand = reinterpret_cast<uint4*>(memory);
  int* sums = reinterpret_cast<int*>(memory + P::kOperandBytes);
  const int lane = threadIdx.x % 32;

  const int slice_units = args.padded_outputs / P::kUnitOutputs;
  const long long total = static_cast<long long>(slice_units) * args.slices;
  const int first = static_cast<int>(total * blockIdx.x / gridDim.x);
  const int last = static_cast<int>(total * (blockIdx.x + 1) / gridDim.x);
  Cursor<P> at;
  at.slice_units = slice_units;
  at.total_quads = args.padded_inputs / 64;
  at.warp = threadIdx.x / 32;
  at.slice = first / slice_units;
  at.unit = first % slice_units;
  at.left = last - first;
  if (at.left > 0) at.start_round();

  // The weights do not depend on the kernel before.
  Fetcher<kDoubleBits, P> fetcher(args, at, lane);
  TilePair<kDoubleBits> even[P::kPairs];
  TilePair<kDoubleBits> odd[P::kPairs];
  fetcher.fetch(even);
  for (int i = threadIdx.x; i < P::kRoundUnits * P::kUnitSums / 4; i += kWarps * 32) {
    reinterpret_cast<int4*>(sums)[i] = make_int4(0, 0, 0, 0);
  }
  let_the_next_kernel_start();
  wait_for_the_kernel_before();

  int loaded = -1;
  int acc[P::kPairs * 2][kFragments][4] = {};
  while (at.left > 0) {
    if (at.slice != loaded) {
      if (threadIdx.x < kFragments * kRowsPerFragment) rows[threadIdx.x] = {};
      __syncthreads();
      prepare<kFragments>(operand, rows, args, at.slice);
      loaded = at.slice;
    }
    int unit = at.item_unit();
    int quad = at.item - unit * at.quads;
    int items = at.end - at.item;
    const auto step = [&](TilePair<kDoubleBits>(&now)[P::kPairs],
                          TilePair<kDoubleBits>(&next)[P::kPairs]) {
      fetcher.fetch(next);
      multiply_item<kDoubleBits, kFragments, P::kPairs>(acc, now, operand + quad * kFragmentWords,
                                                        lane);
      ++quad;
      --items;
      if (quad != at.quads && items != 0) return;
      int* to = sums + unit * P::kUnitSums + lane;
#pragma unroll
      for (int i = 0; i < P::kUnitSums / 32; ++i) {
        int& sum = acc[i / (kFragments * 4)][i / 4 % kFragments][i % 4];
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
        for (int j = 0; j < P::kPairs; ++j) even[j] = odd[j];
        break;
      }
      step(odd, even);
    }
    __syncthreads();
    write_round<P, kFragments>(sums, rows, args, at);
    at.next_round();
    __syncthreads();
  }

  int* completed = reinterpret_cast<int*>(memory);
  if (threadIdx.x == 0) completed[0] = 0;
  __syncthreads();
  arrive<P>(completed, args, first, last);
  __syncthreads();
  finish_rows(completed, args);
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

template <int kDoubleBits>
constexpr Variant kVariants[] = {
    {exl3_mul1_product<kDoubleBits, 1>, Plan<kDoubleBits, 1>::kSharedBytes},
    {exl3_mul1_product<kDoubleBits, 2>, Plan<kDoubleBits, 2>::kSharedBytes},
    {exl3_mul1_product<kDoubleBits, 3>, Plan<kDoubleBits, 3>::kSharedBytes},
    {exl3_mul1_product<kDoubleBits, 4>, Plan<kDoubleBits, 4>::kSharedBytes},
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

int fragments_of(std::uint32_t rows) {
  return static_cast<int>((rows + kRowsPerFragment - 1) / kRowsPerFragment);
}

// The parts of the workspace: the counts, then the partial sums.
std::size_t counts_bytes(const Exl3Layer& layer) {
  return (layer.padded_outputs / kGroup * sizeof(std::uint32_t) + 255) / 256 * 256;
}

Status check_layer(const Exl3Layer& layer) {
  // The groups that a block completes are listed where its operand was.
  constexpr std::uint32_t kMostFeatures = 8000 * kGroup;
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

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return work_error("{}: {}", what, cudaGetErrorString(error));
}

struct Device {
  int blocks = 0;        // multiprocessors
  int shared_bytes = 0;  // of a block
  int major = 0;
};
Status query(Device& device) {
  int index = 0;
  cudaError_t error = cudaGetDevice(&index);
  const std::pair<int*, cudaDeviceAttr> wanted[] = {
      {&device.blocks, cudaDevAttrMultiProcessorCount},
      {&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin},
      {&device.major, cudaDevAttrComputeCapabilityMajor},
  };
  for (const auto& [to, attribute] : wanted) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(to, attribute, index);
  }
  return check(error, "asking for the GPU's properties");
}

// Launches so that the kernel may start while the one before it ends, where the GPU can do that.
Status launch(Kernel kernel, dim3 blocks, int threads, int shared_bytes, const Device& device,
              cudaStream_t stream, const Arguments& args) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = device.major >= 9 ? 1 : 0;
  return check(cudaLaunchKernelEx(&config, kernel, args), "exl3_mul1");
}

}  // namespace

Status exl3_mul1_arrange(const Exl3Layer& layer, const std::uint32_t* trellis,
                         std::uint32_t* weights, cudaStream_t stream) {
  if (auto status = check_layer(layer); !status) return status;
  constexpr int kThreads = 256;
  const std::size_t words = static_cast<std::size_t>(layer.padded_inputs / 64) *
                            (layer.padded_outputs / 32) * (layer.double_bits * 32);
  exl3_mul1_arrange_kernel<<<(words + kThreads - 1) / kThreads, kThreads, 0, stream>>>(
      trellis, weights, static_cast<int>(layer.double_bits),
      static_cast<int>(layer.padded_inputs / 16), static_cast<int>(layer.padded_outputs / 16));
  return check(cudaGetLastError(), "exl3_mul1_arrange");
}

std::size_t exl3_mul1_workspace(const Exl3Layer& layer, std::uint32_t rows) {
  return counts_bytes(layer) +
         static_cast<std::size_t>(slices_of(layer)) * rows * layer.padded_outputs * sizeof(float);
}

Status exl3_mul1(const Exl3Layer& layer, const float* x, std::uint32_t rows, float* y,
                 void* workspace, cudaStream_t stream) {
  if (auto status = check_layer(layer); !status) return status;
  if (rows == 0 || rows > kExl3Rows) {
    return work_error("exl3_mul1: found {} rows, expected 1 to {}", rows, kExl3Rows);
  }
  Device device;
  if (auto status = query(device); !status) return status;
  const Variant& variant = kRates[layer.double_bits][fragments_of(rows) - 1];
  if (variant.shared_bytes > device.shared_bytes) {
    return work_error("exl3_mul1: needs {} bytes of shared memory, this GPU's blocks have {}",
                      variant.shared_bytes, device.shared_bytes);
  }
  Arguments args{};
  args.weights = layer.weights;
  args.suh = reinterpret_cast<const __half*>(layer.suh);
  args.svh = reinterpret_cast<const __half*>(layer.svh);
  args.bias = layer.bias;
  args.x = x;
  args.y = y;
  args.arrived = static_cast<std::uint32_t*>(workspace);
  args.partial =
      reinterpret_cast<float*>(static_cast<std::uint8_t*>(workspace) + counts_bytes(layer));
  args.rows = static_cast<int>(rows);
  args.inputs = static_cast<int>(layer.inputs);
  args.outputs = static_cast<int>(layer.outputs);
  args.padded_inputs = static_cast<int>(layer.padded_inputs);
  args.padded_outputs = static_cast<int>(layer.padded_outputs);
  args.slices = slices_of(layer);
  if (auto status =
          check(cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     variant.shared_bytes),
                "exl3_mul1: asking for shared memory");
      !status) {
    return status;
  }
  return launch(variant.kernel, dim3(device.blocks), kWarps * 32, variant.shared_bytes, device,
                stream, args);
}

}  // namespace espalier::gpu::cuda
