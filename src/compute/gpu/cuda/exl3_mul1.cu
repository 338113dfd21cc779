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
// The trellis is read as the file has it: in a tile, the 32 weights of columns g and g + 8 are 32·K
// consecutive bits, where all bit offsets are constants. A lane takes them of one of four tiles
// along the inputs (a quad), and its weights come out of the multiplication as the instruction's
// operand.
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

struct RowScale {
  float scale;  // of an activation, both rotations' factors included
  int high;     // the sums of the planes
  int low;
  int unused;
};

// What the threads that prepare a slice tell each other.
struct PrepareMemory {
  std::uint32_t most;  // the bits of the largest magnitude
  int high_sum, low_sum;
};

struct Arguments {
  const std::uint8_t* trellis;
  const __half* suh;
  const __half* svh;
  const float* bias;
  const float* x;
  float* y;
  std::uint32_t* arrived;   // [groups]: units added up; zero between calls, as the next two
  std::uint32_t* ready;     // [slices]: rows prepared
  std::uint32_t* finished;  // blocks
  RowScale* scales;         // [slices, rows]
  std::uint32_t* operands;  // [slices, fragments, quads, kFragmentWords]
  float* partial;           // [slices, rows, padded_outputs]
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

// Rotates a row's slice of activations and writes it as the product's operand, by the first eight
// of the block's warps, each a run of 128.
__device__ inline void prepare(PrepareMemory& memory, const Arguments& args, int slice, int row) {
  const int lane = threadIdx.x % 32;
  const int in_slice = threadIdx.x * 4;
  const int k = slice * kSlice + in_slice;
  const bool inside = in_slice < kSlice && k < args.padded_inputs;  // the same for all of a warp
  if (threadIdx.x == 0) memory.most = memory.high_sum = memory.low_sum = 0;
  __syncthreads();
  float values[4] = {};
  if (inside) {
    const uint2 packed = *reinterpret_cast<const uint2*>(args.suh + k);
    const float2 a = __half22float2(reinterpret_cast<const __half2&>(packed.x));
    const float2 b = __half22float2(reinterpret_cast<const __half2&>(packed.y));
    const float scale[4] = {a.x, a.y, b.x, b.y};
    const float* x = args.x + static_cast<std::size_t>(row) * args.inputs;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (k + i < args.inputs) values[i] = x[k + i] * scale[i];
    }
    hadamard(values, lane);
    float largest = 0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      largest = fmaxf(largest, fabsf(values[i]));
      finite = finite && fabsf(values[i]) <= 3.4e38f;
    }
    // What is not finite makes the slice's scale a NaN, and with that the row.
    std::uint32_t bits = finite ? __float_as_uint(largest) : 0x7fc00000u;
    bits = __reduce_max_sync(~0u, bits);
    if (lane == 0) atomicMax(&memory.most, bits);
  }
  __syncthreads();
  const float largest = __uint_as_float(memory.most);
  if (inside) {
    const float to_code = largest > 0 ? kLargest / largest : 0.0f;
    std::uint32_t high[4];
    std::uint32_t low[4];
    int high_sum = 0;
    int low_sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int code = __float2int_rn(values[i] * to_code);
      const int upper = (code + 128) >> 8;
      const int lower = code - upper * 256;
      high_sum += upper;
      low_sum += lower;
      high[i] = upper & 0xff;
      low[i] = lower & 0xff;
    }
    high_sum = __reduce_add_sync(~0u, high_sum);
    low_sum = __reduce_add_sync(~0u, low_sum);
    if (lane == 0) {
      atomicAdd(&memory.high_sum, high_sum);
      atomicAdd(&memory.low_sum, low_sum);
    }
    // Word `pair` of tile `tile` holds inputs 2·pair, 2·pair + 1, 2·pair + 8 and 2·pair + 9 of it.
    const int fragments = (args.rows + kRowsPerFragment - 1) / kRowsPerFragment;
    const int quad = in_slice / 64;
    const int tile = in_slice / 16 % 4;
    const int pair = in_slice % 8 / 2;
    const int upper_half = in_slice / 8 % 2;
    const int column = row % kRowsPerFragment * 2;
    auto* at = reinterpret_cast<std::uint16_t*>(
        args.operands +
        ((static_cast<std::size_t>(slice) * fragments + row / kRowsPerFragment) * kSliceQuads +
         quad) *
            kFragmentWords);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int word = (pair + i) * 32 + column * 4 + tile;
      at[word * 2 + upper_half] = static_cast<std::uint16_t>(high[2 * i] | high[2 * i + 1] << 8);
      at[(word + 4) * 2 + upper_half] =
          static_cast<std::uint16_t>(low[2 * i] | low[2 * i + 1] << 8);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  args.scales[slice * args.rows + row] = {largest * (kHadamardScale / kLargest), memory.high_sum,
                                          memory.low_sum, 0};
  __threadfence();  // all of the block's writes before the count
  atomicAdd(args.ready + slice, 1u);
}

// Waits until all rows of a slice are prepared. Blocks of lower numbers, which start first, do that
// before they wait themselves.
__device__ inline void wait_for_slice(const Arguments& args, int slice) {
  if (threadIdx.x == 0) {
    const volatile std::uint32_t* ready = args.ready + slice;
    while (*ready != static_cast<std::uint32_t>(args.rows)) {
    }
    __threadfence();
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
// A lane's bits of a tile: those of its 32 weights and, for the first states, 16 or 32 before them.
template <int kDoubleBits>
struct Stream {
  static constexpr bool kHalfRate = kDoubleBits % 2 != 0;
  static constexpr int kBefore = kHalfRate ? 16 : 32;
  static constexpr int kWords = (kBefore + 16 * kDoubleBits) / 32;
  std::uint32_t words[kWords];
  std::uint32_t last;  // of half rates: a word more

  // Where a lane's bits of a tile lie, in words, for column `column` and the one 8 further: the
  // word before them, and the first of their own. In half rates the bits of even columns begin with
  // a word and those of odd ones in the middle of one, whose upper half is what came before.
  static __device__ int before_at(int column) {
    const int first = kHalfRate ? (kDoubleBits * column - 1) >> 1 : column * (kDoubleBits / 2) - 1;
    return first < 0 ? 4 * kDoubleBits - 1 : first;
  }
  static __device__ int own_at(int column) {
    return kHalfRate ? ((kDoubleBits * column - 1) >> 1) + 1 : column * (kDoubleBits / 2);
  }

  __device__ void read(const std::uint32_t* before, const std::uint32_t* own) {
    words[0] = __ldg(before);
    constexpr int kOwn = kWords - 1;
    if constexpr (!kHalfRate && kOwn % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kOwn; i += 4) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(own + i));
        words[1 + i] = four.x, words[2 + i] = four.y, words[3 + i] = four.z, words[4 + i] = four.w;
      }
    } else if constexpr (!kHalfRate && kOwn % 2 == 0) {
#pragma unroll
      for (int i = 0; i < kOwn; i += 2) {
        const uint2 two = __ldg(reinterpret_cast<const uint2*>(own + i));
        words[1 + i] = two.x, words[2 + i] = two.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) words[1 + i] = __ldg(own + i);
      if constexpr (kHalfRate) last = __ldg(own + kOwn);
    }
  }

  // Of half rates: moves the bits of even columns half a word up.
  __device__ void align(int column) {
    if constexpr (kHalfRate) {
      const int shift = column % 2 != 0 ? 32 : 16;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        words[i] = __funnelshift_rc(i + 1 < kWords ? words[i + 1] : last, words[i], shift);
      }
    }
  }

  // Word i of the stream without its first `shift` bits. (The compiler computes each only once.)
  __device__ std::uint32_t shifted(int i, int shift) const {
    if (shift == 0) return words[i];
    return i + 1 < kWords ? __funnelshift_l(words[i + 1], words[i], shift) : words[i] << shift;
  }

  // The product of weight i's state; all constants once loops are unrolled.
  __device__ std::uint32_t product(int i) const {
    const int end = kBefore + (i + 1) * kDoubleBits / 2;
    const int shift = end % 8;
    const int last = end / 8 - 1;  // byte of the shifted stream
    const std::uint32_t word = shifted(last / 4, shift);
    std::uint32_t doubled;
    if (last % 4 == 0) {
      doubled = __byte_perm(word, shifted(last / 4 - 1, shift), 0x4343);
    } else {
      const unsigned low = 3 - last % 4;
      doubled = __byte_perm(word, 0, (low | (low + 1) << 4) * 0x101);
    }
    return doubled * kDoubledMultiplier;
  }
};

// The layout of a block's shared memory and the division of the work.
template <int kDoubleBits, int kFragments>
struct Plan {
  static constexpr int kTileBytes = 16 * kDoubleBits;
  // Tiles along the outputs of a unit of work, which goes over a whole slice.
  static constexpr int kTiles = kFragments > 2 || (kDoubleBits > 12) ? 2 : 4;
  static constexpr int kUnitOutputs = kTiles * 16;
  static constexpr int kUnitsPerGroup = kGroup / kUnitOutputs;
  static constexpr int kRoundUnits = kFragments > 2 ? 4 : 8;
  static constexpr int kSumsBytes = kRoundUnits * kTiles * kFragments * 512;
  static constexpr int kOperandBytes = kFragments * kSliceQuads * kFragmentWords * 16;
  static constexpr int kSharedBytes = kOperandBytes + kSumsBytes;
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
  using Bits = Stream<kDoubleBits>;

  const std::uint32_t* lane_start;  // the lane's own bits of the first tile
  int before;                       // words from there to the one before them
  std::size_t quad_words;           // from a quad to the next
  Cursor<Plan> at;
  const std::uint32_t* from;
  int run;  // items to read before the unit ends, or the round

  __device__ Fetcher(const Arguments& args, const Cursor<Plan>& start, int lane) : at(start) {
    const std::size_t row_words =
        static_cast<std::size_t>(args.padded_outputs / 16) * (Plan::kTileBytes / 4);
    quad_words = row_words * 4;
    lane_start = reinterpret_cast<const std::uint32_t*>(args.trellis) + lane % 4 * row_words +
                 Bits::own_at(lane / 4);
    before = Bits::before_at(lane / 4) - Bits::own_at(lane / 4);
    seek();
  }
  __device__ void seek() {
    while (at.left > 0 && at.item == at.end) at.next_round();
    if (at.left <= 0) return;
    const int unit = at.item_unit();
    const int quad = at.item - unit * at.quads;
    run = min(at.quads - quad, at.end - at.item);
    at.item += run;
    from = lane_start + (at.slice * kSliceQuads + quad) * quad_words +
           static_cast<std::size_t>(at.unit + unit) * (Plan::kTiles * Plan::kTileBytes / 4);
  }
  __device__ void fetch(Bits (&to)[Plan::kTiles]) {
    if (at.left <= 0) return;
    const std::uint32_t* from_before = from + before;
#pragma unroll
    for (int j = 0; j < Plan::kTiles; ++j) {
      to[j].read(from_before + j * (Plan::kTileBytes / 4), from + j * (Plan::kTileBytes / 4));
    }
    from += quad_words;
    if (--run == 0) seek();
  }
};

// The slice's operand in shared memory, each activation four times.
template <int kFragments>
__device__ inline void load_operand(uint4* to, const Arguments& args, int slice) {
  constexpr int kWords = kFragments * kSliceQuads * kFragmentWords;
  const uint4* from = reinterpret_cast<const uint4*>(args.operands) +
                      static_cast<std::size_t>(slice) * (kWords / 4);
#pragma unroll
  for (int j = 0; j < kWords / 4 / (kWarps * 32); ++j) {
    const int i = threadIdx.x + j * kWarps * 32;
    const uint4 four = __ldcg(from + i);
    const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      to[i * 4 + w] =
          make_uint4(__byte_perm(words[w], 0, 0x0000), __byte_perm(words[w], 0, 0x1111),
                     __byte_perm(words[w], 0, 0x2222), __byte_perm(words[w], 0, 0x3333));
    }
  }
}

// The sums of a round's outputs, [units, tiles, fragments, 4, 32] as the tensor cores leave them,
// to floats of this slice. Clears them.
template <typename Plan, int kFragments>
__device__ inline void write_round(int* sums, const Arguments& args, const Cursor<Plan>& at) {
  const int columns = at.units * Plan::kUnitOutputs;
  const RowScale* scales = args.scales + at.slice * args.rows;
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
        const int4 s4 = __ldcg(reinterpret_cast<const int4*>(scales + row));
        const RowScale s = reinterpret_cast<const RowScale&>(s4);
        const float product = fmaf(static_cast<float>(high[r] - kMeanBytes * s.high), 256.0f,
                                   static_cast<float>(low[r] - kMeanBytes * s.low));
        const float x_sum = fmaf(static_cast<float>(s.high), 256.0f, static_cast<float>(s.low));
        __stcg(to + static_cast<std::size_t>(row) * args.padded_outputs,
               s.scale * fmaf(product, kStep, x_sum * kOffset));
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
template <int kDoubleBits, int kFragments, int kTiles>
__device__ inline void multiply_item(int (&acc)[kTiles][kFragments][4],
                                     Stream<kDoubleBits> (&bits)[kTiles], const uint4* operand,
                                     int column) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) bits[j].align(column);
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    uint4 x[kFragments];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      x[f] = operand[f * (kSliceQuads * kFragmentWords) + pair * 32];
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      std::uint32_t w[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) w[i] = bits[j].product(pair * 8 + i);
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
  __shared__ PrepareMemory prepare_memory;
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
  Stream<kDoubleBits> even[P::kTiles];
  Stream<kDoubleBits> odd[P::kTiles];
  fetcher.fetch(even);
  for (int i = threadIdx.x; i < P::kSumsBytes / 16; i += kWarps * 32) {
    reinterpret_cast<int4*>(sums)[i] = make_int4(0, 0, 0, 0);
  }
  let_the_next_kernel_start();
  wait_for_the_kernel_before();
  for (int task = blockIdx.x; task < args.slices * args.rows; task += gridDim.x) {
    prepare(prepare_memory, args, task / args.rows, task % args.rows);
  }

  int loaded = -1;
  int acc[P::kTiles][kFragments][4] = {};
  while (at.left > 0) {
    if (at.slice != loaded) {
      wait_for_slice(args, at.slice);
      load_operand<kFragments>(operand, args, at.slice);
      loaded = at.slice;
    }
    __syncthreads();
    int unit = at.item_unit();
    int quad = at.item - unit * at.quads;
    int items = at.end - at.item;
    const auto step = [&](Stream<kDoubleBits>(&now)[P::kTiles],
                          Stream<kDoubleBits>(&next)[P::kTiles]) {
      fetcher.fetch(next);
      multiply_item<kDoubleBits, kFragments>(acc, now, operand + quad * kFragmentWords + lane,
                                             lane / 4);
      ++quad;
      --items;
      if (quad != at.quads && items != 0) return;
      int* to = sums + unit * (P::kTiles * kFragments * 128) + lane;
#pragma unroll
      for (int i = 0; i < P::kTiles * kFragments * 4; ++i) {
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
        for (int j = 0; j < P::kTiles; ++j) even[j] = odd[j];
        break;
      }
      step(odd, even);
    }
    __syncthreads();
    write_round<P, kFragments>(sums, args, at);
    at.next_round();
  }

  int* completed = reinterpret_cast<int*>(memory);
  __syncthreads();
  if (threadIdx.x == 0) {
    completed[0] = 0;
    if (atomicAdd(args.finished, 1u) + 1 == gridDim.x) {  // nobody waits any more
      *args.finished = 0;
      for (int slice = 0; slice < args.slices; ++slice) args.ready[slice] = 0;
    }
  }
  __syncthreads();
  arrive<P>(completed, args, first, last);
  __syncthreads();
  finish_rows(completed, args);
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

// The parts of the workspace, each a multiple of 256 bytes.
struct Workspace {
  std::size_t ready, finished, scales, operands, partial, end;
};
Workspace workspace_of(const Exl3Layer& layer, std::uint32_t rows) {
  const auto round_up = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::size_t slices = slices_of(layer);
  Workspace at{};
  at.ready = round_up(layer.padded_outputs / kGroup * sizeof(std::uint32_t));
  at.finished = at.ready + round_up(slices * sizeof(std::uint32_t));
  at.scales = at.finished + 256;
  at.operands = at.scales + round_up(slices * rows * sizeof(RowScale));
  at.partial = at.operands + slices * fragments_of(rows) * (kSliceQuads * kFragmentWords * 4);
  at.end = at.partial + round_up(slices * rows * layer.padded_outputs * sizeof(float));
  return at;
}

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Error{ErrorKind::kWork, std::string(what) + ": " + cudaGetErrorString(error)};
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

std::size_t exl3_mul1_workspace(const Exl3Layer& layer, std::uint32_t rows) {
  return workspace_of(layer, rows).end;
}

Status exl3_mul1(const Exl3Layer& layer, const float* x, std::uint32_t rows, float* y,
                 void* workspace, cudaStream_t stream) {
  const Variant* rate = layer.double_bits < std::size(kRates) ? kRates[layer.double_bits] : nullptr;
  if (rows == 0 || rows > kExl3Rows || rate == nullptr) {
    return Error{ErrorKind::kWork, "exl3_mul1: found " + std::to_string(rows) + " rows at " +
                                       std::to_string(layer.double_bits) +
                                       " half bits, expected 1 to 16 rows at 1 to 8 bits"};
  }
  // The groups that a block completes are listed where its operand was.
  constexpr std::uint32_t kMostOutputs = 8000 * kGroup;
  if (layer.padded_inputs == 0 || layer.padded_inputs % kGroup != 0 || layer.padded_outputs == 0 ||
      layer.padded_outputs % kGroup != 0 || layer.padded_outputs > kMostOutputs ||
      layer.inputs > layer.padded_inputs || layer.outputs > layer.padded_outputs) {
    return Error{ErrorKind::kWork, "exl3_mul1: found " + std::to_string(layer.padded_inputs) +
                                       " inputs and " + std::to_string(layer.padded_outputs) +
                                       " outputs, expected multiples of 128, at most " +
                                       std::to_string(kMostOutputs) + " outputs"};
  }
  Device device;
  if (auto status = query(device); !status) return status;
  const Variant& variant = rate[fragments_of(rows) - 1];
  if (variant.shared_bytes > device.shared_bytes) {
    return Error{ErrorKind::kWork, "exl3_mul1: needs " + std::to_string(variant.shared_bytes) +
                                       " bytes of shared memory, this GPU's blocks have " +
                                       std::to_string(device.shared_bytes)};
  }
  const Workspace at = workspace_of(layer, rows);
  auto* base = static_cast<std::uint8_t*>(workspace);
  Arguments args{};
  args.trellis = layer.trellis;
  args.suh = reinterpret_cast<const __half*>(layer.suh);
  args.svh = reinterpret_cast<const __half*>(layer.svh);
  args.bias = layer.bias;
  args.x = x;
  args.y = y;
  args.arrived = reinterpret_cast<std::uint32_t*>(base);
  args.ready = reinterpret_cast<std::uint32_t*>(base + at.ready);
  args.finished = reinterpret_cast<std::uint32_t*>(base + at.finished);
  args.scales = reinterpret_cast<RowScale*>(base + at.scales);
  args.operands = reinterpret_cast<std::uint32_t*>(base + at.operands);
  args.partial = reinterpret_cast<float*>(base + at.partial);
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
