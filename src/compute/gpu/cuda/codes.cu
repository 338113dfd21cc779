// How formats of integer codes are multiplied on tensor cores, with halves as operands.
//
// Activations: scaled by a power of two for each row and unit of 128 inputs, so that the largest is
// beside the largest half, and rounded to halves: 2⁻¹² of each, and nothing else is rounded before
// float. An instruction (m16n8k16) serves 8 rows, at the cost of one.
//
// Weights: a lane's codes are its part of the first operand (codes_formats.cuh), exact. The sums of
// a group are float; the scale comes after them.
//
// Division of work: the tiles of 128 outputs, each over all inputs in steps of a stage, are one
// sequence, matrix after matrix, of which each block has a contiguous run. Weights and activations
// of a stage come into shared memory by bulk copies that one warp orders ahead of the eight that
// multiply. Where a run ends within a tile, the block that is last to arrive adds the parts, in the
// order of the inputs. So the order of sums depends on the matrices' shapes and on the GPU's number
// of multiprocessors alone.
#include "compute/gpu/cuda/codes.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

#include "compute/gpu/cuda/codes_arrange.cuh"
#include "compute/gpu/cuda/half_mma.cuh"
#include "compute/gpu/cuda/overlap.cuh"

namespace espalier::gpu::cuda::codes {

// What a half of each input of a unit has more than its code.
struct Bias {
  float of[kUnit];
};

// Columns of a table: what the host needs to know of a format.
struct Arguments;
struct Kernels {
  std::string_view format;  // ending of the portable kernels' names
  std::uint32_t bits;       // of a code, where several formats share a name
  int units;                // of a stage
  int parts;                // threads that arrange a tile
  int sum_lanes;            // of `prepare`, whose codes' sums belong together
  bool grouped;             // it keeps scales apart, in groups of a size of the matrix
  int shared_bytes;         // that a block has beside stages
  int (*tile_bytes)(const FormatArguments&);
  void (*arrange)(Weights matrix, FormatArguments format, std::uint8_t* to, int stages,
                  long long tiles);
  void (*decode)(const std::uint8_t* weights, FormatArguments format, int tile_stages, HalfRows to);
  float unit_factor;  // of `prepare`, which multiplies the scales of units by it
  Bias bias;
  void (*few)(Arguments);   // 2 rows
  void (*some)(Arguments);  // 8
  void (*many)(Arguments);  // 16
};

// A part's matrix, whose stages of the sequence begin at `first_stage`.
struct MatrixArguments {
  const std::uint8_t* weights;
  const float* bias;
  float* y;
  int outputs;
  int first_stage;
};

struct Arguments {
  MatrixArguments matrices[kMostParts];  // those of no part begin after all stages
  const std::uint8_t* activations;       // of each unit, ActivationUnit
  std::uint32_t* arrived;                // [tiles of 128 outputs]: parts; zero between calls
  float* partial;                        // [2 · blocks, rows of the fragments, 128]
  FormatArguments format;
  int rows;
  int tiles, tile_stages, ring;  // of 128 outputs; stages of a tile; stages in shared memory
};

namespace {

constexpr int kThreads = (kWarps + 1) * 32;
constexpr int kBlocksPerProcessor = 2;
constexpr int kMostRing = 8;

// A unit's activations of the columns of an instruction, in bytes from its beginning: for each step
// of 32 inputs and column, 8 halves of each of four lanes; of each group and column, the sum of its
// activations, and less what the codes' biases add; the columns' scales. Where there are fewer
// columns than 8, the others are the same again.
template <int kColumns>
struct ActivationUnit {
  static constexpr int kSums = kColumns * 256;
  static constexpr int kBiases = kSums + kColumns * 32;
  static constexpr int kScales = kBiases + kColumns * 32;
  static constexpr int kBytes = kColumns * 336;  // a multiple of 16
};

// Makes the activations' units: a warp for each unit and row, four inputs a lane.
template <int kColumns>
__global__ void __launch_bounds__(64)
    prepare(const float* x, std::uint8_t* units, int rows, int inputs, int sum_lanes,
            float unit_factor, const Bias bias) {
  using Unit = ActivationUnit<kColumns>;
  const int lane = threadIdx.x % 32;
  const int row = blockIdx.y * 2 + threadIdx.x / 32;
  const int column = row % kColumns;
  const int k = blockIdx.x * kUnit + lane * 4;
  let_the_next_kernel_start();
  wait_for_the_kernel_before();
  float values[4];
  float largest = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool inside = row < rows && k + i < inputs;
    values[i] = inside ? x[static_cast<std::size_t>(row) * inputs + k + i] : 0.0f;
    largest = fmaxf(largest, fabsf(values[i]));
    finite = finite && fabsf(values[i]) <= 3.4e38f;
  }
  // What is not finite makes the unit's scale a NaN, and with that the row.
  const std::uint32_t bits =
      __reduce_max_sync(~0u, finite ? __float_as_uint(largest) : 0x7fc00000u);
  const int exponent = static_cast<int>(bits >> 23);
  const float to_half = __uint_as_float(static_cast<std::uint32_t>(min(268 - exponent, 254)) << 23);
  float scale = exponent > 14 ? __uint_as_float(static_cast<std::uint32_t>(exponent - 14) << 23)
                              : __uint_as_float(0x00400000u);
  if (exponent == 255) scale = __uint_as_float(bits);
  std::uint32_t halves[4];
  float sum = 0;
  float biases = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __half half = __float2half_rn(values[i] * to_half);
    halves[i] = __half_as_ushort(half);
    sum += __half2float(half);
    biases -= __half2float(half) * bias.of[lane * 4 + i];
  }
  std::uint8_t* unit =
      units + (static_cast<std::size_t>(blockIdx.x) * (gridDim.y * 2 / kColumns) + row / kColumns) *
                  Unit::kBytes;
  const int step = lane / 8;
  const int half_step = lane / 4 % 2;
  *reinterpret_cast<uint2*>(unit + ((step * kColumns + column) * 4 + lane % 4) * 16 +
                            half_step * 8) =
      make_uint2(halves[0] | halves[2] << 16, halves[1] | halves[3] << 16);
  for (int apart = 1; apart < sum_lanes; apart *= 2) {
    sum += __shfl_xor_sync(~0u, sum, apart);
    biases += __shfl_xor_sync(~0u, biases, apart);
  }
  if (lane % sum_lanes == 0) {
    const int place = lane / sum_lanes * kColumns + column;
    reinterpret_cast<float*>(unit + Unit::kSums)[place] = sum;
    reinterpret_cast<float*>(unit + Unit::kBiases)[place] = biases;
  }
  if (lane == 0) reinterpret_cast<float*>(unit + Unit::kScales)[column] = scale * unit_factor;
}

// Sums of a group that `prepare` adds up are of at most a unit.
template <typename Format>
constexpr int kSumLanes = (Format::kGroup < kUnit ? Format::kGroup : kUnit) / 4;

// A tile's scales and offsets as floats, where a warp shares them: of each row those of all groups.
template <typename Format>
struct SharedNumbers {
  static constexpr int kEach = Format::kOffset ? 2 : 1;
  static constexpr int kGroups = Format::kUnits * kUnit / Format::kGroup;
  // An odd number of 16 bytes: rows then do not meet in a bank.
  static constexpr int kRowBytes = (((kGroups * kEach * 4 + 15) / 16) | 1) * 16;
  static constexpr int kBytes = kTileRows * kRowBytes;
};

// As many floats as are copied at once.
template <int kFloats>
using Piece =
    std::conditional_t<kFloats % 4 == 0, float4, std::conditional_t<kFloats == 2, float2, float>>;

template <int kFloats>
__device__ inline void copy_floats(void* to, const void* from) {
#pragma unroll
  for (int i = 0; i < kFloats / static_cast<int>(sizeof(Piece<kFloats>) / 4); ++i) {
    static_cast<Piece<kFloats>*>(to)[i] = static_cast<const Piece<kFloats>*>(from)[i];
  }
}

// A lane computes those of half the groups of a row.
template <typename Format>
__device__ inline void share_numbers(std::uint8_t* to, const std::uint8_t* header,
                                     const FormatArguments& format, int lane) {
  using Shared = SharedNumbers<Format>;
  constexpr int kEach = Shared::kEach;
  const int row = lane % kTileRows;
  const int half = lane / kTileRows;
  const typename Format::Numbers numbers(header, row, half, format);
  alignas(16) float floats[Shared::kGroups / 2 * kEach];
#pragma unroll
  for (int g = 0; g < Shared::kGroups / 2; ++g) {
    floats[g * kEach] = numbers.scale(g);
    if constexpr (Format::kOffset) floats[g * kEach + 1] = numbers.offset(g);
  }
  copy_floats<Shared::kGroups / 2 * kEach>(to + row * Shared::kRowBytes + half * sizeof(floats),
                                           floats);
}

// Adds a stage's products to a lane's totals, of outputs lane / 4 and lane / 4 + 8 of the warp's
// tile and rows 8f + lane % 4 · 2 and the next. `shared` is the warp's own.
template <typename Format, int kColumns, int kFragments>
__device__ inline void multiply_stage(float (&total)[kFragments][4], const std::uint8_t* tile,
                                      const std::uint8_t* activations, std::uint8_t* shared,
                                      const FormatArguments& format, int lane) {
  using Bits = typename Format::Bits;
  using Unit = ActivationUnit<kColumns>;
  using Shared = SharedNumbers<Format>;
  constexpr int kGroup = Format::kGroup;
  constexpr int kUnitGroups = kUnit / kGroup;
  constexpr int kEach = Shared::kEach;
  share_numbers<Format>(shared, tile + Format::kUnits * kUnit * kTileRows * Bits::kBits / 8, format,
                        lane);
  __syncwarp();
  const std::uint8_t* operand = activations + (lane / 4 % kColumns * 4 + lane % 4) * 16;
  const std::uint8_t* sums_of_rows = activations + lane % 4 * 2 % kColumns * 4;
#pragma unroll
  for (int u = 0; u < Format::kUnits; ++u) {
    alignas(16) float numbers[2][kUnitGroups * kEach];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      copy_floats<kUnitGroups * kEach>(
          numbers[i], shared + (lane / 4 + 8 * i) * Shared::kRowBytes + u * sizeof(numbers[i]));
    }
    const auto unit = [&](int f) { return (u * kFragments + f) * Unit::kBytes; };
    float acc[kFragments][4] = {};
    float d[kFragments][4];
    // Of group i of the unit.
    const auto sums = [&](int f, int i, int which) {
      return load<float2>(sums_of_rows + unit(f) + which + i * kColumns * 4);
    };
    const auto begin = [&](int i) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        const float2 less = Bits::kBiased ? sums(f, i, Unit::kBiases) : make_float2(0, 0);
        d[f][0] = d[f][2] = less.x;
        d[f][1] = d[f][3] = less.y;
      }
    };
    const auto end = [&](int i) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          acc[f][j] = fmaf(numbers[j / 2][i * kEach], d[f][j], acc[f][j]);
        }
        if constexpr (Format::kOffset) {
          const float2 sum = sums(f, i, Unit::kSums);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            acc[f][j] = fmaf(numbers[j / 2][i * kEach + 1], j % 2 == 0 ? sum.x : sum.y, acc[f][j]);
          }
        }
      }
    };
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      Pairs a;
      Bits::read(a, tile, lane, u * 4 + s, Format::kUnits);
      uint4 b[kFragments];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        b[f] = load<uint4>(operand + unit(f) + s * kColumns * 64);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = s * 32 + half * 16;  // of the unit
        if (k % kGroup == 0) begin(k / kGroup);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          multiply(d[f], a[half][0], a[half][1], a[half][2], a[half][3],
                   half == 0 ? b[f].x : b[f].z, half == 0 ? b[f].y : b[f].w);
        }
        if ((k + 16) % kGroup == 0) end(k / kGroup);
      }
    }
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const auto scale = load<float2>(sums_of_rows + unit(f) + Unit::kScales);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        total[f][j] = fmaf(acc[f][j], j % 2 == 0 ? scale.x : scale.y, total[f][j]);
      }
    }
  }
}

// A run of the sequence of stages: those of block b of n begin here.
__device__ inline int run_begin(const Arguments& args, int b, int n) {
  return static_cast<int>(static_cast<long long>(args.tiles) * args.tile_stages * b / n);
}
// The block whose run has a stage.
__device__ inline int block_of(const Arguments& args, int stage, int n) {
  const long long total = static_cast<long long>(args.tiles) * args.tile_stages;
  return static_cast<int>(((stage + 1LL) * n - 1) / total);
}
// The matrix that has a stage.
__device__ inline const MatrixArguments& matrix_of(const Arguments& args, int stage) {
  std::size_t index = 0;
#pragma unroll
  for (std::size_t i = 1; i < kMostParts; ++i) {
    if (stage >= args.matrices[i].first_stage) index = i;
  }
  return args.matrices[index];
}
// A stage's weights.
__device__ inline const std::uint8_t* weights_of(const Arguments& args, int stage, int bytes) {
  const MatrixArguments& matrix = matrix_of(args, stage);
  return matrix.weights + static_cast<std::size_t>(stage - matrix.first_stage) * bytes;
}

// Where copies into shared memory can be ordered and waited for by barriers in it.
#if __CUDA_ARCH__ >= 900
__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline void barrier_init(std::uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(count));
}
__device__ inline void barrier_expect(std::uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
__device__ inline void barrier_wait(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "wait:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
      "@!p bra wait;\n\t}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ inline void copy_in(std::uint8_t* to, const std::uint8_t* from, int bytes,
                               std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
#endif

// The threads that multiply meet.
__device__ inline void meet() { asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory"); }

__device__ inline void write_out(const MatrixArguments& matrix, int rows, float value, int row,
                                 int output) {
  if (row >= rows || output >= matrix.outputs) return;
  if (matrix.bias != nullptr) value += matrix.bias[output];
  matrix.y[static_cast<std::size_t>(row) * matrix.outputs + output] = value;
}

// Ends the block's part of a tile, stages [begin, end) of the sequence.
template <int kColumns, int kFragments>
__device__ inline void finish_tile(const Arguments& args, const float (&total)[kFragments][4],
                                   int begin, int end, int first, int lane, int warp) {
  constexpr int kRows = kColumns * kFragments;
  const int tile = begin / args.tile_stages;
  const MatrixArguments& matrix = matrix_of(args, begin);
  const int first_output = (tile - matrix.first_stage / args.tile_stages) * kTileOutputs;
  const bool whole = end - begin == args.tile_stages;
  // A block has room for two parts: of the tile in which its run begins, and of that in which it
  // ends. Of a tile's blocks only the first may have begun before it.
  const auto part_of = [&](int block, int second) {
    return args.partial + (2 * static_cast<std::size_t>(block) + second) * kRows * kTileOutputs;
  };
  float* part = part_of(blockIdx.x, begin == first ? 0 : 1);
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = f * kColumns + lane % 4 * 2 + j % 2;
      const int output = warp * kTileRows + lane / 4 + j / 2 * 8;
      if (row >= kRows) continue;
      if (whole) {
        write_out(matrix, args.rows, total[f][j], row, first_output + output);
      } else {
        part[row * kTileOutputs + output] = total[f][j];
      }
    }
  }
  if (whole) return;
  __shared__ bool last;
  __threadfence();
  meet();
  const int blocks = gridDim.x;
  const int from = block_of(args, tile * args.tile_stages, blocks);
  const int to = block_of(args, (tile + 1) * args.tile_stages - 1, blocks);
  if (threadIdx.x == 0) {
    last = atomicAdd(&args.arrived[tile], 1u) == static_cast<unsigned>(to - from);
    if (last) args.arrived[tile] = 0;
    __threadfence();
  }
  meet();
  if (!last) return;
  constexpr int kTogether = 4;  // loads that overlap
  const int second = run_begin(args, from, blocks) < tile * args.tile_stages ? 1 : 0;
  for (int i = threadIdx.x; i < args.rows * (kTileOutputs / 4); i += kWarps * 32) {
    float sum[4] = {};
    for (int b = from; b <= to; b += kTogether) {
      float4 some[kTogether] = {};
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const float* from_block = part_of(b + j, b + j == from ? second : 0);
        if (b + j <= to) some[j] = __ldcg(reinterpret_cast<const float4*>(from_block) + i);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        sum[0] += some[j].x, sum[1] += some[j].y, sum[2] += some[j].z, sum[3] += some[j].w;
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      write_out(matrix, args.rows, sum[j], i / (kTileOutputs / 4),
                first_output + i % (kTileOutputs / 4) * 4 + j);
    }
  }
}

template <typename Format, int kColumns, int kFragments>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor) product(const Arguments args) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ __align__(16) std::uint8_t shared_numbers[kWarps][SharedNumbers<Format>::kBytes];
  const int tile_bytes = tile_bytes_of<Format>(args.format);
  const int weight_bytes = tile_bytes * kWarps;
  constexpr int kActivationBytes = Format::kUnits * kFragments * ActivationUnit<kColumns>::kBytes;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int first = run_begin(args, blockIdx.x, gridDim.x);
  const int last = run_begin(args, blockIdx.x + 1, gridDim.x);
  const int count = last - first;
#if __CUDA_ARCH__ >= 900
  __shared__ std::uint64_t full[kMostRing];
  __shared__ std::uint64_t empty[kMostRing];
  const int stage_bytes = weight_bytes + kActivationBytes;
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.ring; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp == kWarps) {
    if (lane != 0) return;
    const auto copy_weights = [&](int i) {
      const int slot = i % args.ring;
      barrier_expect(&full[slot], stage_bytes);
      copy_in(memory + slot * stage_bytes, weights_of(args, first + i, weight_bytes), weight_bytes,
              &full[slot]);
    };
    const auto copy_activations = [&](int i) {
      const int slot = i % args.ring;
      copy_in(memory + slot * stage_bytes + weight_bytes,
              args.activations +
                  static_cast<std::size_t>((first + i) % args.tile_stages) * kActivationBytes,
              kActivationBytes, &full[slot]);
    };
    // The weights do not depend on the kernel before.
    const int ahead = min(count, args.ring);
    for (int i = 0; i < ahead; ++i) copy_weights(i);
    let_the_next_kernel_start();
    wait_for_the_kernel_before();
    for (int i = 0; i < ahead; ++i) copy_activations(i);
    for (int i = ahead; i < count; ++i) {
      barrier_wait(&empty[i % args.ring], (i / args.ring - 1) % 2);
      copy_weights(i);
      copy_activations(i);
    }
    return;
  }
  wait_for_the_kernel_before();
#else
  if (warp == kWarps) return;
#endif
  float total[kFragments][4] = {};
  int begin = first;
  for (int i = 0; i < count; ++i) {
    const int stage = first + i;
#if __CUDA_ARCH__ >= 900
    const int slot = i % args.ring;
    const std::uint8_t* weights = memory + slot * stage_bytes;
    const std::uint8_t* activations = weights + weight_bytes;
    barrier_wait(&full[slot], i / args.ring % 2);
#else
    const std::uint8_t* weights = weights_of(args, stage, weight_bytes);
    const std::uint8_t* activations =
        args.activations + static_cast<std::size_t>(stage % args.tile_stages) * kActivationBytes;
#endif
    multiply_stage<Format, kColumns>(total, weights + warp * tile_bytes, activations,
                                     shared_numbers[warp], args.format, lane);
    __syncwarp();  // before the stage's memory and the warp's numbers are written again
#if __CUDA_ARCH__ >= 900
    if (lane == 0) barrier_arrive(&empty[slot]);
#endif
    if ((stage + 1) % args.tile_stages == 0 || i + 1 == count) {
      finish_tile<kColumns>(args, total, begin, stage + 1, first, lane, warp);
      begin = stage + 1;
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int j = 0; j < 4; ++j) total[f][j] = 0;
      }
    }
  }
}

template <typename Bits>
Bias biases_of() {
  Bias bias{};
  for (int input = 0; input < kUnit; ++input) bias.of[input] = Bits::bias(input);
  return bias;
}

template <typename Format>
Kernels kernels_of(std::string_view name, std::uint32_t bits = 0, bool grouped = false) {
  return {.format = name,
          .bits = bits,
          .units = Format::kUnits,
          .parts = Format::kUnits * kUnit * kTileRows * Format::Bits::kBits / 32 + kTileRows,
          .sum_lanes = kSumLanes<Format>,
          .grouped = grouped,
          .shared_bytes = kWarps * SharedNumbers<Format>::kBytes,
          .tile_bytes = tile_bytes_of<Format>,
          .arrange = arrange_kernel<Format>,
          .decode = decode_kernel<Format>,
          .unit_factor = Format::kFactor,
          .bias = biases_of<typename Format::Bits>(),
          .few = product<Format, 2, 1>,
          .some = product<Format, 8, 1>,
          .many = product<Format, 8, 2>};
}

#define ESPALIER_CODES_KERNELS(name, bits, ...) kernels_of<__VA_ARGS__>(#name, bits, bits != 0),
const Kernels kKernels[] = {ESPALIER_CODES_FORMATS(ESPALIER_CODES_KERNELS)};

struct Shape {
  int tiles, tile_stages, units;
};
Shape shape_of(const Layer& layer) {
  const std::uint32_t stage_inputs = layer.kernels->units * kUnit;
  const auto stages = static_cast<int>((layer.inputs + stage_inputs - 1) / stage_inputs);
  return {static_cast<int>((layer.outputs + kTileOutputs - 1) / kTileOutputs), stages,
          stages * layer.kernels->units};
}

FormatArguments arguments_of(const Layer& layer) {
  return format_arguments(layer.kernels->units, layer.scale_type,
                          layer.kernels->grouped ? layer.group : 0);
}

constexpr std::uint32_t kMostTiles = 8192;  // of 128 outputs: each has a count
constexpr std::uint32_t kMostProcessors = 512;
constexpr std::size_t kCountBytes = kMostTiles * sizeof(std::uint32_t);

// The rows that a product of some rows has room for.
int room_of(std::uint32_t rows) { return rows <= 2 ? 2 : rows <= 8 ? 8 : 16; }
int unit_bytes(int room) {
  return room == 2 ? ActivationUnit<2>::kBytes : room / 8 * ActivationUnit<8>::kBytes;
}
std::size_t partial_bytes(int room) {
  return std::size_t{2} * kBlocksPerProcessor * kMostProcessors * room * kTileOutputs * 4;
}

}  // namespace

const Kernels* find_kernels(std::string_view format, std::uint32_t bits) {
  for (const Kernels& kernels : kKernels) {
    if (kernels.format == format && (!kernels.grouped || kernels.bits == bits)) return &kernels;
  }
  return nullptr;
}

Status check(const Layer& layer) {
  if (layer.inputs == 0 || layer.outputs == 0 || layer.inputs > 0x3fffffff ||
      layer.outputs > kMostTiles * kTileOutputs) {
    return work_error("codes: found {} inputs and {} outputs, expected 1 to {} and to {}",
                      layer.inputs, layer.outputs, 0x3fffffff, kMostTiles * kTileOutputs);
  }
  if (!layer.kernels->grouped) return {};
  const std::uint32_t stage = layer.kernels->units * kUnit;
  const bool fits = layer.group >= 32 && layer.group % 32 == 0 &&
                    (layer.group < stage ? stage % layer.group == 0 : layer.group % stage == 0);
  if (!fits || layer.scale_type > 1) {
    return work_error(
        "codes: found groups of {} with scales of type {}, expected 32, 64, 128 or a "
        "multiple of 256 with 16 bits",
        layer.group, layer.scale_type);
  }
  return {};
}

std::size_t arranged_bytes(const Layer& layer) {
  const Shape shape = shape_of(layer);
  return static_cast<std::size_t>(shape.tiles) * shape.tile_stages * kWarps *
         layer.kernels->tile_bytes(arguments_of(layer));
}

Status arrange(const Layer& layer, const Weights& matrix, std::uint8_t* weights,
               cudaStream_t stream) {
  ESPALIER_CHECK(check(layer));
  const Shape shape = shape_of(layer);
  const FormatArguments format = arguments_of(layer);
  const long long tiles = static_cast<long long>(shape.tiles) * shape.tile_stages * kWarps;
  const long long parts = layer.kernels->parts * tiles;
  constexpr int kArrangeThreads = 256;
  layer.kernels->arrange<<<static_cast<unsigned>((parts + kArrangeThreads - 1) / kArrangeThreads),
                           kArrangeThreads, 0, stream>>>(matrix, format, weights, shape.tile_stages,
                                                         tiles);
  return cuda::check(cudaGetLastError(), "codes: arranging");
}

Status decode(const Layer& layer, const float* factor, std::uint32_t first, std::uint32_t outputs,
              std::uint32_t stride, std::uint16_t* halves, cudaStream_t stream) {
  ESPALIER_CHECK(check(layer));
  if (first % kTileOutputs != 0 || outputs == 0 || stride % 4 != 0) {
    return work_error("codes: found {} outputs from {} in rows of {}", outputs, first, stride);
  }
  const Shape shape = shape_of(layer);
  const HalfRows to = {factor, reinterpret_cast<__half*>(halves), static_cast<int>(first),
                       static_cast<int>(outputs), static_cast<int>(stride)};
  const dim3 blocks(shape.tile_stages, (outputs + kTileOutputs - 1) / kTileOutputs);
  layer.kernels->decode<<<blocks, kWarps * 32, 0, stream>>>(layer.weights, arguments_of(layer),
                                                            shape.tile_stages, to);
  return cuda::check(cudaGetLastError(), "codes: decoding");
}

std::size_t workspace_bytes(const Layer& layer, std::uint32_t rows) {
  const int room = room_of(rows);
  return kCountBytes + partial_bytes(room) +
         static_cast<std::size_t>(shape_of(layer).units) * unit_bytes(room);
}

Status check(std::span<const Part> parts) {
  if (parts.empty() || parts.size() > kMostParts) {
    return work_error("codes: found {} parts, expected 1 to {}", parts.size(), kMostParts);
  }
  const Layer& first = parts.front().layer;
  std::uint32_t tiles = 0;
  for (const Part& part : parts) {
    const Layer& layer = part.layer;
    ESPALIER_CHECK(check(layer));
    if (layer.kernels != first.kernels || layer.inputs != first.inputs ||
        layer.scale_type != first.scale_type || layer.group != first.group) {
      return work_error("codes: found parts of different formats or numbers of inputs");
    }
    tiles += shape_of(layer).tiles;
  }
  if (tiles > kMostTiles) {
    return work_error("codes: found {} tiles of 128 outputs, expected at most {}", tiles,
                      kMostTiles);
  }
  return {};
}

Status project(std::span<const Part> parts, const float* x, std::uint32_t rows, void* workspace,
               cudaStream_t stream) {
  ESPALIER_CHECK(check(parts));
  if (rows == 0 || rows > kRows) {
    return work_error("codes: found {} rows, expected 1 to {}", rows, kRows);
  }
  Limits limits;
  ESPALIER_CHECK(find_limits(limits));
  const Layer& layer = parts.front().layer;
  const Kernels& kernels = *layer.kernels;
  const Shape shape = shape_of(layer);
  const int room = room_of(rows);
  auto* base = static_cast<std::uint8_t*>(workspace);
  Arguments args{};
  for (MatrixArguments& matrix : args.matrices) {
    matrix.first_stage = std::numeric_limits<int>::max();
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Layer& part = parts[i].layer;
    args.matrices[i] = {part.weights, part.bias, parts[i].y, static_cast<int>(part.outputs),
                        args.tiles * shape.tile_stages};
    args.tiles += shape_of(part).tiles;
  }
  args.arrived = reinterpret_cast<std::uint32_t*>(base);
  args.partial = reinterpret_cast<float*>(base + kCountBytes);
  std::uint8_t* activations = base + kCountBytes + partial_bytes(room);
  args.activations = activations;
  args.format = arguments_of(layer);
  args.rows = static_cast<int>(rows);
  args.tile_stages = shape.tile_stages;
  const int stage_bytes =
      kernels.tile_bytes(args.format) * kWarps + kernels.units * unit_bytes(room);
  const int reserved = 2048 + kernels.shared_bytes;  // of a block: CUDA's own, barriers, numbers
  args.ring =
      std::min(kMostRing, (limits.shared_bytes / kBlocksPerProcessor - reserved) / stage_bytes);
  if (args.ring < 1 || limits.multiprocessors > static_cast<int>(kMostProcessors)) {
    return work_error(
        "codes: this GPU has {} multiprocessors of {} bytes of shared memory, expected "
        "at most {} of at least {}",
        limits.multiprocessors, limits.shared_bytes, kMostProcessors,
        kBlocksPerProcessor * (stage_bytes + reserved));
  }
  const int shared_bytes = limits.major == 9 ? args.ring * stage_bytes : 0;
  const auto kernel = room == 2 ? kernels.few : room == 8 ? kernels.some : kernels.many;
  ESPALIER_CHECK(cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
      "codes: asking for shared memory"));
  ESPALIER_CHECK(launch_overlapping(
      room == 2 ? prepare<2> : prepare<8>, dim3(shape.units, room / 2), 64, 0, limits, stream, x,
      activations, static_cast<int>(rows), static_cast<int>(layer.inputs), kernels.sum_lanes,
      kernels.unit_factor, kernels.bias));
  // Where blocks that fill nearly all of the GPU can each have an equal part of one tile, they do:
  // a run that ends within a tile and goes on in the next has two parts to finish.
  const int most = kBlocksPerProcessor * limits.multiprocessors;
  const int even = most / args.tiles * args.tiles;
  const int blocks = std::min(even * 16 >= most * 15 ? even : most, args.tiles * args.tile_stages);
  return launch_overlapping(kernel, dim3(blocks), kThreads, shared_bytes, limits, stream, args);
}

}  // namespace espalier::gpu::cuda::codes
