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
constexpr int kWarps = 16;           // of a block
constexpr int kGroup = 128;          // outputs that are rotated together

// A row's activations of a slice.
struct RowSlice {
  std::uint32_t most;  // the bits of the largest magnitude
  int high, low;       // the sums of the planes
  int unused;
};

struct Arguments {
  const std::uint32_t* weights;
  const __half* suh;
  const __half* svh;
  const float* bias;
  const float* x;
  float* y;
  // All zero between calls: units of work added up, [groups]; sums, in runs of 32 of one register
  // of a warp's lanes, [slices, pairs of tiles, tile, fragments, 4, 32].
  std::uint32_t* arrived;
  int* sums;
  RowSlice* row_slices;  // [slices, rows]
  std::int16_t* codes;   // of more than 8 rows, [slices, rows, kSlice]
  int rows, inputs, outputs, padded_inputs, padded_outputs, slices, fragments;
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

// How the work is divided. An item is a unit of outputs in one quad of inputs; items are counted
// chunk by chunk of inputs, whose operand is in shared memory together, then unit by unit, then
// quad by quad. A block has a contiguous run of them, of which each team has a contiguous share per
// chunk.
template <int kUnitPairs_, int kTeamWarps_, int kChunkQuads_>
struct Division {
  static constexpr int kUnitPairs = kUnitPairs_;  // pairs of tiles of a unit
  static constexpr int kTeamWarps = kTeamWarps_;  // warps that share an item
  static constexpr int kChunkQuads = kChunkQuads_;
  static constexpr int kTeams = kWarps / kTeamWarps;
  static constexpr int kWarpPairs = kUnitPairs / kTeamWarps;
};

// A team's place in its share.
template <typename Division>
struct Cursor {
  int units, total_quads, team;
  int next, last;                       // of the block's items, those after this chunk
  int chunk, quads, unit, quad, items;  // of the share; `items` are left of it

  // From item `first` on, within chunk `index`.
  __device__ void start(const Arguments& args, int first, int last_item) {
    units = args.padded_outputs / (32 * Division::kUnitPairs);
    total_quads = args.padded_inputs / 64;
    team = threadIdx.x / (32 * Division::kTeamWarps);
    next = first;
    last = last_item;
    chunk = first / (units * Division::kChunkQuads) - 1;
    next_chunk();
  }
  __device__ bool done() const { return chunk < 0; }
  __device__ void next_chunk() {
    if (next >= last) {
      chunk = -1;
      return;
    }
    ++chunk;
    const int before = chunk * units * Division::kChunkQuads;
    quads = min(Division::kChunkQuads, total_quads - chunk * Division::kChunkQuads);
    const int begin = next - before;
    const int end = min(last - before, units * quads);
    next = before + end;
    const int from = begin + (end - begin) * team / Division::kTeams;
    items = begin + (end - begin) * (team + 1) / Division::kTeams - from;
    unit = quads == Division::kChunkQuads ? from / Division::kChunkQuads : from / quads;
    quad = from - unit * quads;
  }
};

// Reads a lane's bits of one item after the other, ahead of the products.
template <int kDoubleBits, typename Division>
struct Fetcher {
  static constexpr int kPairWords = kDoubleBits * 32;  // of a pair of tiles in a quad
  const std::uint32_t* weights;
  Cursor<Division> at;
  const std::uint32_t* from = nullptr;
  int run = 0;  // items to read before the unit ends, or the share

  __device__ void start(const Arguments& args, const Cursor<Division>& first) {
    weights = args.weights;
    at = first;
    seek();
  }
  __device__ void seek() {
    while (!at.done() && at.items == 0) at.next_chunk();
    if (at.done()) return;
    run = min(at.quads - at.quad, at.items);
    // Pairs of tiles lie in twos, quad by quad.
    const int pair = at.unit * Division::kUnitPairs +
                     threadIdx.x / 32 % Division::kTeamWarps * Division::kWarpPairs;
    const std::size_t two = static_cast<std::size_t>(pair / 2) * at.total_quads +
                            at.chunk * Division::kChunkQuads + at.quad;
    from = weights + (two * 2 + pair % 2) * kPairWords;
    at.items -= run;
    at.quad = 0;
    ++at.unit;
  }
  __device__ void fetch(TilePair<kDoubleBits> (&to)[Division::kWarpPairs]) {
    if (at.done()) return;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < Division::kWarpPairs; ++j) to[j].read(from + j * kPairWords, lane);
    from += 2 * kPairWords;
    if (--run == 0) seek();
  }
};

// Adds a warp's sums of a unit to those of the slice, and clears them.
template <int kFragments, typename Division>
__device__ inline void add_sums(int (&acc)[Division::kWarpPairs * 2][kFragments][4],
                                const Arguments& args, const Cursor<Division>& at) {
  const int pair = at.unit * Division::kUnitPairs +
                   threadIdx.x / 32 % Division::kTeamWarps * Division::kWarpPairs;
  const int slice = at.chunk * Division::kChunkQuads / kSliceQuads;
  int* to = args.sums +
            (static_cast<std::size_t>(slice) * (args.padded_outputs / 16) + pair * 2) *
                (kFragments * 128) +
            threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < Division::kWarpPairs * 2 * kFragments * 4; ++i) {
    int& sum = acc[i / (kFragments * 4)][i / 4 % kFragments][i % 4];
    atomicAdd(to + i * 32, sum);
    sum = 0;
  }
}

// All items of a team's share of a chunk. `multiply(tiles, quad)` adds up an item's products.
template <int kDoubleBits, int kFragments, typename Division, typename Multiply>
__device__ inline void run_share(Cursor<Division>& at, Fetcher<kDoubleBits, Division>& fetcher,
                                 TilePair<kDoubleBits> (&even)[Division::kWarpPairs],
                                 int (&acc)[Division::kWarpPairs * 2][kFragments][4],
                                 const Arguments& args, const Multiply& multiply) {
  using Tiles = TilePair<kDoubleBits>[Division::kWarpPairs];
  Tiles odd;
  const auto step = [&](Tiles& now, Tiles& next) {
    fetcher.fetch(next);
    multiply(now, at.quad);
    ++at.quad;
    --at.items;
    if (at.quad != at.quads && at.items != 0) return;
    add_sums<kFragments>(acc, args, at);
    at.quad = 0;
    ++at.unit;
  };
#pragma unroll 1
  while (at.items > 0) {
    step(even, odd);
    if (at.items == 0) {
#pragma unroll
      for (int j = 0; j < Division::kWarpPairs; ++j) even[j] = odd[j];
      break;
    }
    step(odd, even);
  }
}

// Counts the block's items in the groups of 128 outputs that they belong to. `completed` becomes
// the number of groups of which this block is the last, and they themselves.
template <typename Division>
__device__ inline void arrive(int* completed, const Arguments& args, int first, int last) {
  constexpr int kGroupUnits = kGroup / (32 * Division::kUnitPairs);
  const int units = args.padded_outputs / (32 * Division::kUnitPairs);
  const int total_quads = args.padded_inputs / 64;
  const int chunk_items = units * Division::kChunkQuads;
  for (int group = threadIdx.x; group < args.padded_outputs / kGroup; group += kWarps * 32) {
    int items = 0;
    for (int chunk = first / chunk_items; chunk * chunk_items < last; ++chunk) {
      const int quads = min(Division::kChunkQuads, total_quads - chunk * Division::kChunkQuads);
      const int begin = chunk * chunk_items + group * (kGroupUnits * quads);
      items += max(0, min(last, begin + kGroupUnits * quads) - max(first, begin));
    }
    if (items == 0) continue;
    __threadfence();  // the sums before the count
    const std::uint32_t before = atomicAdd(args.arrived + group, static_cast<std::uint32_t>(items));
    if (before + items != static_cast<std::uint32_t>(total_quads * kGroupUnits)) continue;
    args.arrived[group] = 0;
    completed[1 + atomicAdd(completed, 1)] = group;
    __threadfence();  // the count before the others' sums
  }
}

// Makes floats of the slices' sums of 32 outputs of a fragment's four rows and adds them up in
// order, as `values` [4, kGroup] of the group. Zeroes the sums for the next call.
__device__ inline void add_slices(float* values, const Arguments& args, int group, int fragment,
                                  int quarter, int lane) {
  // A tile's registers of a lane: plane 0 and 1 of output lane / 4 and row lane % 4, then of the
  // output 8 further.
  const int tile_sums = args.fragments * 128;
  const std::size_t slice_sums = static_cast<std::size_t>(args.padded_outputs / 16) * tile_sums;
  int* from = args.sums + static_cast<std::size_t>(group * 8 + quarter * 2) * tile_sums +
              fragment * 128 + lane;
  const int row = min(fragment * kRowsPerFragment + lane % 4, args.rows - 1);
  float sums[4] = {};
#pragma unroll 4
  for (int slice = 0; slice < args.slices; ++slice) {
    const int4 info =
        __ldcg(reinterpret_cast<const int4*>(args.row_slices + slice * args.rows + row));
    int* at = from + slice * slice_sums;
    int planes[4][2];
#pragma unroll
    for (int i = 0; i < 8; ++i) planes[i / 2][i % 2] = __ldcg(at + i / 4 * tile_sums + i % 4 * 32);
#pragma unroll
    for (int i = 0; i < 8; ++i) __stcg(at + i / 4 * tile_sums + i % 4 * 32, 0);
    const float scale = __int_as_float(info.x) * (kHadamardScale / kLargest);
    const float x_sum = fmaf(static_cast<float>(info.y), 256.0f, static_cast<float>(info.z));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float product = fmaf(static_cast<float>(planes[i][0] - kMeanBytes * info.y), 256.0f,
                                 static_cast<float>(planes[i][1] - kMeanBytes * info.z));
      sums[i] += scale * fmaf(product, kStep, x_sum * kOffset);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[lane % 4 * kGroup + quarter * 32 + i * 8 + lane / 4] = sums[i];
  }
}

// Rotates and scales a row's group.
__device__ inline void write_group(const float* values, const Arguments& args, int group, int row,
                                   int lane) {
  const int output = group * kGroup + lane * 4;
  const float4 four = reinterpret_cast<const float4*>(values)[lane];
  float sums[4] = {four.x, four.y, four.z, four.w};
  hadamard(sums, lane);
  const uint2 packed = *reinterpret_cast<const uint2*>(args.svh + output);
  const float2 a = __half22float2(reinterpret_cast<const __half2&>(packed.x));
  const float2 b = __half22float2(reinterpret_cast<const __half2&>(packed.y));
  const float scales[4] = {a.x, a.y, b.x, b.y};
  float* y = args.y + static_cast<std::size_t>(row) * args.outputs;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (output + i >= args.outputs) continue;
    y[output + i] = sums[i] * (scales[i] * kHadamardScale) +
                    (args.bias != nullptr ? args.bias[output + i] : 0.0f);
  }
}

// What a block does after its products: where it is the last of a group, it finishes the group.
// `memory` is what the operand needs no more.
constexpr std::uint32_t kMostGroups = 4095;  // of a list of 16 KB
template <typename Division, int kFragments>
__device__ inline void finish(std::uint8_t* memory, const Arguments& args, int first, int last) {
  constexpr int kBatch = kFragments > 4 ? 4 : 8;  // groups at a time
  int* completed = reinterpret_cast<int*>(memory);
  float* values = reinterpret_cast<float*>(memory + (kMostGroups + 1) * sizeof(int));
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) completed[0] = 0;
  __syncthreads();
  arrive<Division>(completed, args, first, last);
  __syncthreads();
  for (int done = 0; done < completed[0]; done += kBatch) {
    const int groups = min(kBatch, completed[0] - done);
    for (int task = warp; task < groups * kFragments * 4; task += kWarps) {
      const int fragment = task / 4 % kFragments;
      const int in_batch = task / (4 * kFragments);
      add_slices(values + (in_batch * kFragments + fragment) * (kRowsPerFragment * kGroup), args,
                 completed[1 + done + in_batch], fragment, task % 4, lane);
    }
    __syncthreads();
    for (int task = warp; task < groups * args.rows; task += kWarps) {
      const int row = task % args.rows;
      const int in_batch = task / args.rows;
      write_group(values + (in_batch * kFragments * kRowsPerFragment + row) * kGroup, args,
                  completed[1 + done + in_batch], row, lane);
    }
    __syncthreads();
  }
}

// A block's items of `total`.
__device__ inline int first_item(int total, unsigned block) {
  return static_cast<int>(static_cast<long long>(total) * block / gridDim.x);
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
using FewRows =
    Division<(kDoubleBits * kFragments > 16 || kDoubleBits > 12 ? 1 : 2), 1, kSliceQuads>;
template <int kFragments>
constexpr int kFewRowsShared = kFragments* kSliceQuads* kFragmentWords * 16;

template <int kDoubleBits, int kFragments>
__global__ void __launch_bounds__(kWarps * 32, 1) exl3_mul1_few_rows(const Arguments args) {
  using D = FewRows<kDoubleBits, kFragments>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ RowSlice rows[kFragments * kRowsPerFragment];
  uint4* operand = reinterpret_cast<uint4*>(memory);
  const int lane = threadIdx.x % 32;

  const int total = args.padded_outputs / (32 * D::kUnitPairs) * (args.padded_inputs / 64);
  const int first = first_item(total, blockIdx.x);
  const int last = first_item(total, blockIdx.x + 1);
  Cursor<D> at;
  at.start(args, first, last);
  // The weights do not depend on the kernel before.
  Fetcher<kDoubleBits, D> fetcher;
  TilePair<kDoubleBits> tiles[D::kWarpPairs];
  fetcher.start(args, at);
  fetcher.fetch(tiles);
  let_the_next_kernel_start();
  wait_for_the_kernel_before();

  int acc[D::kWarpPairs * 2][kFragments][4] = {};
  for (; !at.done(); at.next_chunk()) {
    if (threadIdx.x < kFragments * kRowsPerFragment) rows[threadIdx.x] = {};
    __syncthreads();
    prepare<kFragments>(operand, rows, args, at.chunk);
    // For whoever finishes. (All blocks write the same.)
    if (threadIdx.x < args.rows) {
      const RowSlice& row = rows[threadIdx.x];
      __stcg(reinterpret_cast<int4*>(args.row_slices + at.chunk * args.rows + threadIdx.x),
             make_int4(static_cast<int>(row.most), row.high, row.low, 0));
    }
    run_share<kDoubleBits, kFragments>(
        at, fetcher, tiles, acc, args, [&](TilePair<kDoubleBits>(&now)[D::kWarpPairs], int quad) {
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
        });
    __syncthreads();
  }
  finish<D, kFragments>(memory, args, first, last);
}

// ---- 9 to 32 rows on Hopper: wgmma, whose four warps hold 16 outputs each and which reads the
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
using ManyRows = Division<4, 4, 64 / kFragments>;
template <int kFragments>
constexpr int kManyRowsShared =
    WideOperand<kFragments>::kQuadBytes* ManyRows<kFragments>::kChunkQuads;

// A chunk's codes as the operand.
template <int kFragments>
__device__ inline void load_operand(std::uint8_t* operand, const Arguments& args, int chunk) {
  using D = ManyRows<kFragments>;
  using Operand = WideOperand<kFragments>;
  constexpr int kFours = D::kChunkQuads * 16;  // of codes, a row
  const int slice = chunk * D::kChunkQuads / kSliceQuads;
  const std::int16_t* codes = args.codes + static_cast<std::size_t>(slice) * args.rows * kSlice +
                              chunk * D::kChunkQuads % kSliceQuads * 64;
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

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
#define ESPALIER_FOUR(d, f) "+r"(d[f][0]), "+r"(d[f][1]), "+r"(d[f][2]), "+r"(d[f][3])
__device__ inline void wgmma(int (&d)[4][4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                             std::uint32_t a3, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1;"
      : ESPALIER_FOUR(d, 0), ESPALIER_FOUR(d, 1), ESPALIER_FOUR(d, 2), ESPALIER_FOUR(d, 3)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}
__device__ inline void wgmma(int (&d)[8][4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                             std::uint32_t a3, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1;"
      : ESPALIER_FOUR(d, 0), ESPALIER_FOUR(d, 1), ESPALIER_FOUR(d, 2), ESPALIER_FOUR(d, 3),
        ESPALIER_FOUR(d, 4), ESPALIER_FOUR(d, 5), ESPALIER_FOUR(d, 6), ESPALIER_FOUR(d, 7)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}
#undef ESPALIER_FOUR
#endif

template <int kDoubleBits, int kFragments>
__global__ void __launch_bounds__(kWarps * 32, 1) exl3_mul1_many_rows(const Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using D = ManyRows<kFragments>;
  using Operand = WideOperand<kFragments>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  const int lane = threadIdx.x % 32;

  const int total = args.padded_outputs / (32 * D::kUnitPairs) * (args.padded_inputs / 64);
  const int first = first_item(total, blockIdx.x);
  const int last = first_item(total, blockIdx.x + 1);
  Cursor<D> at;
  at.start(args, first, last);
  // The weights do not depend on the kernel before.
  Fetcher<kDoubleBits, D> fetcher;
  TilePair<kDoubleBits> tiles[1];
  fetcher.start(args, at);
  fetcher.fetch(tiles);
  let_the_next_kernel_start();
  wait_for_the_kernel_before();

  // A descriptor of the operand: where, and how far its core matrices lie apart along the inputs
  // and the columns, all in 16 bytes.
  const std::uint64_t descriptor =
      static_cast<std::uint64_t>(__cvta_generic_to_shared(memory)) >> 4 |
      static_cast<std::uint64_t>(Operand::kInputBytes / 16) << 16 | std::uint64_t{128 / 16} << 32;
  int acc[2][kFragments][4] = {};
  for (; !at.done(); at.next_chunk()) {
    load_operand<kFragments>(memory, args, at.chunk);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    run_share<kDoubleBits, kFragments>(
        at, fetcher, tiles, acc, args, [&](TilePair<kDoubleBits>(&now)[1], int quad) {
          now[0].find_start(lane);
#pragma unroll
          for (int eight = 0; eight < 4; ++eight) {
            std::uint32_t w[2][8];
#pragma unroll
            for (int i = 0; i < 16; ++i) w[i / 8][i % 8] = now[0].product(i / 8, eight * 8 + i % 8);
            const std::uint64_t low = descriptor + Operand::at(quad, 2 * eight) / 16;
            const std::uint64_t high = descriptor + Operand::at(quad, 2 * eight + 8) / 16;
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              wgmma(acc[j], w[j][0], w[j][4], w[j][1], w[j][5], low);
              wgmma(acc[j], w[j][2], w[j][6], w[j][3], w[j][7], high);
            }
            wgmma_commit();
            if (eight == 3) {
              wgmma_wait<0>();
            } else {
              wgmma_wait<1>();
            }
          }
        });
    __syncthreads();
  }
  finish<D, kFragments>(memory, args, first, last);
#endif
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

// Fragments 1, 2, 4 and 8.
template <int kDoubleBits>
constexpr Variant kVariants[] = {
    {exl3_mul1_few_rows<kDoubleBits, 1>, kFewRowsShared<1>},
    {exl3_mul1_few_rows<kDoubleBits, 2>, kFewRowsShared<2>},
    {exl3_mul1_many_rows<kDoubleBits, 4>, kManyRowsShared<4>},
    {exl3_mul1_many_rows<kDoubleBits, 8>, kManyRowsShared<8>},
};

// By twice the bits.
constexpr const Variant* kRates[] = {
    nullptr,       nullptr,      kVariants<2>,  kVariants<3>, kVariants<4>,  kVariants<5>,
    kVariants<6>,  kVariants<7>, kVariants<8>,  nullptr,      kVariants<10>, nullptr,
    kVariants<12>, nullptr,      kVariants<14>, nullptr,      kVariants<16>,
};

// The variant for a number of rows.
int variant_of(std::uint32_t rows) { return rows <= 4 ? 0 : rows <= 8 ? 1 : rows <= 16 ? 2 : 3; }

int slices_of(const Exl3Layer& layer) {
  return static_cast<int>((layer.padded_inputs + kSlice - 1) / kSlice);
}

// The most features, so that the count of each group of 128 outputs has a place of its own whatever
// the layer, and so that a block has room to list the groups that it finishes.
constexpr std::uint32_t kMostFeatures = kMostGroups * kGroup;
constexpr std::size_t kCountBytes = (kMostGroups + 1) * sizeof(std::uint32_t);

std::size_t row_slices_bytes(const Exl3Layer& layer, std::uint32_t rows) {
  return (slices_of(layer) * rows * sizeof(RowSlice) + 255) / 256 * 256;
}

Status check_layer(const Exl3Layer& layer) {
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

Exl3Workspace exl3_mul1_workspace(const Exl3Layer& layer, std::uint32_t rows) {
  const std::size_t slices = slices_of(layer);
  const std::size_t fragments = std::size_t{1} << variant_of(rows);
  return {kCountBytes + slices * (layer.padded_outputs / 16) * fragments * 128 * sizeof(int),
          row_slices_bytes(layer, rows) + slices * rows * kSlice * sizeof(std::int16_t)};
}

Status exl3_mul1(const Exl3Layer& layer, const float* x, std::uint32_t rows, float* y, void* zeroed,
                 void* scratch, cudaStream_t stream) {
  if (auto status = check_layer(layer); !status) return status;
  if (rows == 0 || rows > kExl3Rows) {
    return work_error("exl3_mul1: found {} rows, expected 1 to {}", rows, kExl3Rows);
  }
  Device device;
  if (auto status = query(device); !status) return status;
  const Variant& variant = kRates[layer.double_bits][variant_of(rows)];
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
  args.arrived = static_cast<std::uint32_t*>(zeroed);
  args.sums = reinterpret_cast<int*>(static_cast<std::uint8_t*>(zeroed) + kCountBytes);
  args.row_slices = static_cast<RowSlice*>(scratch);
  args.codes = reinterpret_cast<std::int16_t*>(static_cast<std::uint8_t*>(scratch) +
                                               row_slices_bytes(layer, rows));
  args.fragments = 1 << variant_of(rows);
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
  if (rows > 8) {
    if (auto status = launch(exl3_mul1_prepare, dim3(args.slices, rows), kPrepareThreads, 0, device,
                             stream, args);
        !status) {
      return status;
    }
  }
  return launch(variant.kernel, dim3(device.blocks), kWarps * 32, variant.shared_bytes, device,
                stream, args);
}

}  // namespace espalier::gpu::cuda
