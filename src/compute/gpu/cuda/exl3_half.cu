// How EXL3's products with MCG and 3INST run on half-precision tensor cores.
//
// Their weight is the sum of the two halves of one word. The word goes as it is into m16n8k16, as
// two consecutive values of the contraction, whose other operand holds the activation twice: the
// instruction adds the halves, exactly. (The format rounds that sum to half.)
//
// Activations: rotated, scaled by one factor for each row and slice of 1,024 inputs so that none
// overflows, and rounded to half. A column of the instruction is a row.
//
// Sums are floats, so their order is fixed, and depends on the layer's shape alone: the division of
// the work counts on as many blocks as an H200 runs at once, whatever the GPU. Products of a team
// follow each other along the inputs; where teams share a unit, their sums are added in the teams'
// order, and slices in theirs, by a second kernel that also rotates back.
#include "compute/gpu/cuda/exl3_half.h"
#include "compute/gpu/cuda/exl3_tiles.cuh"
#include "compute/gpu/cuda/half_mma.cuh"

namespace espalier::gpu::cuda {
namespace {

constexpr int kBlocks = 132;
constexpr int kMostRows = 8;  // of a launch
// The operand, in lines of 32 uint4, one for each lane: a word is an activation twice. A quad has
// four lines, each of four inputs of its four tiles. The padding keeps a warp's writes in different
// banks.
constexpr int kLine = 32 + 2;
constexpr int kOperandBytes = kSliceQuads * 4 * kLine * 16;

struct Arguments : Exl3Arguments {
  std::uint32_t multiplier, doubled_multiplier, addend;
};

// What a row's activations of a slice are multiplied by, and its inverse, from the bits of the
// largest magnitude. That becomes 2¹⁵, not just something near: where one activation dwarfs the
// others, all 128 that it is rotated into have the same magnitude, whose rounding would be the
// row's. What is not finite makes NaNs.
struct Scale {
  float to_half, back;
};
__device__ inline Scale scale_of(std::uint32_t most) {
  const float largest = __uint_as_float(most);
  const float finite = fmaxf(largest, 1e-30f);  // of a NaN too
  return {32768.0f / finite, largest <= finite ? finite / 32768.0f : largest};
}

// Rotates the rows' activations of a slice and leaves the product's operand. A warp for each run of
// 128 of a row at a time. Ends with a barrier; `most` is clear before.
__device__ inline void prepare(uint4* operand, std::uint32_t* most, const Arguments& args,
                               int slice) {
  constexpr int kRuns = kSlice / 128;
  constexpr int kTasks = kMostRows * kRuns / kWarps;
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
      if (lane == 0) atomicMax(&most[row], bits);
    }
  }
  __syncthreads();
  if (inside) {
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
      const int row = first_row + task * kRowStep;
      if (row >= args.rows) break;
      const float to_half = scale_of(most[row]).to_half;
      std::uint32_t twice[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __half2 two = __float2half2_rn(values[task][i] * to_half);
        twice[i] = reinterpret_cast<const std::uint32_t&>(two);
      }
      // Word `pair` of tile `tile` holds inputs 2·pair, 2·pair + 1, 2·pair + 8 and 2·pair + 9 of
      // it. Column 2r holds row r and column 2r + 1 row r + 4.
      const int quad = in_slice / 64;
      const int tile = in_slice / 16 % 4;
      const int pair = in_slice % 8 / 2;
      const int upper_half = in_slice / 8 % 2;
      const int column = row % 4 * 2 + row / 4;
      auto* to = reinterpret_cast<uint2*>(operand + (quad * 4 + pair) * kLine + column * 4 + tile);
      to[upper_half] = make_uint2(twice[0], twice[1]);
      to[2 * kLine + upper_half] = make_uint2(twice[2], twice[3]);
    }
  }
  __syncthreads();
}

// The two halves of weight i of a tile. The last step is one instruction: of two constants it takes
// one from a register, `flips`.
template <int kDoubleBits>
__device__ inline std::uint32_t halves_of(const TilePair<kDoubleBits>& tiles, int tile, int i,
                                          const Arguments& args, std::uint32_t flips) {
  const std::uint32_t product = TilePair<kDoubleBits>::is_half_word(i)
                                    ? tiles.half_word(tile, i) * args.multiplier
                                    : tiles.doubled_state(tile, i) * args.doubled_multiplier;
  std::uint32_t halves;
  asm("lop3.b32 %0, %1, 0x8fff8fff, %2, 0x6a;"  // (a & b) ^ c
      : "=r"(halves)
      : "r"(product + args.addend), "r"(flips));
  return halves;
}

// A warp takes two pairs of tiles where its registers hold their bits and sums. Rounds are short
// enough for GPUs whose blocks have 99 KB of shared memory.
template <int kDoubleBits>
using HalfRows = Division<(kDoubleBits > 8 ? 1 : 2), 1, 1, 32 * 1024>;
// The sums of a round, and of each team's part of a unit that another team began.
template <typename D>
constexpr int kSharedBytes = kOperandBytes + D::kSumsBytes + kWarps* D::kUnitSums * 4;

// The sums of a round, [units, tiles, 4, 32] as the tensor cores leave them, each with those of
// the teams after the first, [teams, tiles, 4, 32], to floats of this slice.
template <typename D>
__device__ inline void write_round(const float* sums, const float* later, const std::uint32_t* most,
                                   const Arguments& args, const Cursor<D>& at) {
  const int items = at.units * at.quads;
  const int columns = at.units * D::kUnitOutputs;
  for (int column = threadIdx.x; column < columns; column += kWarps * 32) {
    const int unit = column / D::kUnitOutputs;
    const int in_unit = column % D::kUnitOutputs;
    // Register 0 of a lane: output lane / 4, row lane % 4. Register 1: the row 4 further.
    // Registers 2 and 3: the output 8 further.
    const int place = in_unit / 8 * 64 + in_unit % 8 * 4;
    // The teams that begin within the unit.
    const int team_begin = ((unit * at.quads + 1) * D::kTeams + items - 1) / items;
    const int team_end = ((unit + 1) * D::kTeams + at.units - 1) / at.units;
    float* to = args.partial +
                static_cast<std::size_t>(at.slice) * args.rows * args.padded_outputs +
                at.unit * D::kUnitOutputs + column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half * 4 >= args.rows) break;
      const int from = place + half * 32;
      float4 sum = *reinterpret_cast<const float4*>(sums + unit * D::kUnitSums + from);
      for (int team = team_begin; team < team_end; ++team) {
        if (items * team / D::kTeams == items * (team + 1) / D::kTeams) continue;  // has no items
        const float4 more = *reinterpret_cast<const float4*>(later + team * D::kUnitSums + from);
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      const float four[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = half * 4 + r;
        if (row >= args.rows) break;
        __stcg(to + static_cast<std::size_t>(row) * args.padded_outputs,
               four[r] * scale_of(most[row]).back * kHadamardScale);
      }
    }
  }
}

template <int kDoubleBits>
__global__ void __launch_bounds__(kWarps * 32, 1) exl3_half_rows(const Arguments args) {
  using D = HalfRows<kDoubleBits>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ std::uint32_t most[kMostRows];
  const uint4* operand = reinterpret_cast<const uint4*>(memory);
  float* sums = reinterpret_cast<float*>(memory + kOperandBytes);
  float* later = sums + D::kSumsBytes / 4;
  const int lane = threadIdx.x % 32;

  const int first = first_unit<D>(args, blockIdx.x);
  const int last = first_unit<D>(args, blockIdx.x + 1);
  Cursor<D> at(args, first, last);
  // The weights do not depend on the kernel before.
  Fetcher<kDoubleBits, D> fetcher(args, at);
  TilePair<kDoubleBits> tiles[D::kWarpPairs];
  fetcher.fetch(tiles);
  let_the_next_kernel_start();
  wait_for_the_kernel_before();

  std::uint32_t flips;  // a constant that the compiler does not know
  asm volatile("mov.b32 %0, 0x3b603b60;" : "=r"(flips));
  float acc[D::kWarpPairs * 2][4] = {};
  const auto multiply_item = [&](TilePair<kDoubleBits>(&now)[D::kWarpPairs], int quad) {
    const uint4* b = operand + quad * (4 * kLine) + lane;
#pragma unroll
    for (int j = 0; j < D::kWarpPairs; ++j) now[j].find_start(lane);
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      const uint4 x = b[eight * kLine];
#pragma unroll
      for (int j = 0; j < D::kWarpPairs * 2; ++j) {
        std::uint32_t w[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          w[i] = halves_of(now[j / 2], j % 2, eight * 8 + i, args, flips);
        }
        multiply(acc[j], w[0], w[4], w[1], w[5], x.x, x.y);
        multiply(acc[j], w[2], w[6], w[3], w[7], x.z, x.w);
      }
    }
  };
  const auto deposit = [&](int unit, Part part) {
    float* to =
        lane + (part == Part::kFirst ? sums + unit * D::kUnitSums : later + at.team * D::kUnitSums);
#pragma unroll
    for (int i = 0; i < D::kUnitSums / 32; ++i) {
      to[i * 32] = acc[i / 4][i % 4];
      acc[i / 4][i % 4] = 0;
    }
  };
  int loaded = -1;
  while (at.left > 0) {
    if (at.slice != loaded) {
      if (threadIdx.x < kMostRows) most[threadIdx.x] = 0;
      __syncthreads();
      prepare(reinterpret_cast<uint4*>(memory), most, args, at.slice);
      loaded = at.slice;
    }
    run_share<kDoubleBits, D>(at, fetcher, tiles, multiply_item, deposit);
    __syncthreads();
    write_round<D>(sums, later, most, args, at);
    at.next_round();
    __syncthreads();
  }
}

// A warp for each row of a group of outputs.
constexpr int kFinishWarps = 4;
__global__ void __launch_bounds__(kFinishWarps * 32) exl3_half_finish(const Arguments args) {
  let_the_next_kernel_start();
  wait_for_the_kernel_before();
  const int task = blockIdx.x * kFinishWarps + threadIdx.x / 32;
  if (task >= args.padded_outputs / kGroup * args.rows) return;
  finish_row(args, task / args.rows, task % args.rows);
}

using Kernel = void (*)(Arguments);
struct Variant {
  Kernel kernel = nullptr;
  int shared_bytes = 0;
};
template <int kBits>
constexpr Variant kVariant = {exl3_half_rows<2 * kBits>, kSharedBytes<HalfRows<2 * kBits>>};

// By bits.
constexpr Variant kRates[] = {
    {},          kVariant<1>, kVariant<2>, kVariant<3>, kVariant<4>,
    kVariant<5>, kVariant<6>, kVariant<7>, kVariant<8>,
};

}  // namespace

Status check_exl3_half(const Exl3Layer& layer) {
  if (layer.double_bits % 2 != 0) {
    return work_error("exl3_half: found {} bits a weight, expected 1 to 8, whole",
                      layer.double_bits / 2.0);
  }
  return check_exl3_mul1(layer);
}

std::size_t exl3_half_workspace(const Exl3Layer& layer, std::uint32_t rows) {
  const std::size_t slices = (layer.padded_inputs + kSlice - 1) / kSlice;
  const std::size_t at_once = std::min<std::size_t>(rows, kMostRows);
  return kExl3CountBytes + slices * at_once * layer.padded_outputs * sizeof(float);
}

Status exl3_half(const Exl3Layer& layer, const Exl3HalfCodebook& codebook, const float* x,
                 std::uint32_t rows, float* y, void* workspace, cudaStream_t stream) {
  ESPALIER_CHECK(check_exl3_half(layer));
  if (rows == 0 || rows > kExl3Rows) {
    return work_error("exl3_half: found {} rows, expected 1 to {}", rows, kExl3Rows);
  }
  Limits limits;
  ESPALIER_CHECK(find_limits(limits));
  const Variant& variant = kRates[layer.double_bits / 2];
  ESPALIER_CHECK(
      check(cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 variant.shared_bytes),
            "exl3_half: asking for shared memory"));
  Arguments args{};
  args.weights = layer.weights;
  args.suh = reinterpret_cast<const __half*>(layer.suh);
  args.svh = reinterpret_cast<const __half*>(layer.svh);
  args.bias = layer.bias;
  args.partial = static_cast<float*>(workspace) + kExl3CountBytes / sizeof(float);
  args.inputs = static_cast<int>(layer.inputs);
  args.outputs = static_cast<int>(layer.outputs);
  args.padded_inputs = static_cast<int>(layer.padded_inputs);
  args.padded_outputs = static_cast<int>(layer.padded_outputs);
  args.multiplier = codebook.multiplier;
  args.doubled_multiplier = for_doubled(codebook.multiplier);
  args.addend = codebook.addend;
  for (std::uint32_t row = 0; row < rows; row += kMostRows) {
    args.rows = static_cast<int>(std::min<std::uint32_t>(kMostRows, rows - row));
    args.x = x + std::size_t{row} * layer.inputs;
    args.y = y + std::size_t{row} * layer.outputs;
    ESPALIER_CHECK(launch_overlapping(variant.kernel, kBlocks, kWarps * 32, variant.shared_bytes,
                                      limits, stream, args));
    const int tasks = args.padded_outputs / kGroup * args.rows;
    ESPALIER_CHECK(launch_overlapping(exl3_half_finish, (tasks + kFinishWarps - 1) / kFinishWarps,
                                      kFinishWarps * 32, 0, limits, stream, args));
  }
  return {};
}

}  // namespace espalier::gpu::cuda
