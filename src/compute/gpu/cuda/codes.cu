// How formats of integer codes are multiplied on integer tensor cores.
//
// Activations: scaled to 16 bits by one factor for each row and unit of 128 inputs, and fed as two
// planes of s8, columns 2r and 2r + 1 of the second operand of m16n8k32. So one instruction serves
// 4 rows, and a lane finds a row's two sums side by side.
//
// Weights: a lane's codes are its part of the first operand (codes_formats.cuh). The sums of a
// group are exact integers; the scale comes after them, in float.
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

#include "compute/gpu/cuda/codes_arrange.cuh"
#include "compute/gpu/cuda/overlap.cuh"

namespace espalier::gpu::cuda::codes {

// Columns of a table: what the host needs to know of a format.
struct Arguments;
struct Kernels {
  std::string_view format;  // ending of the portable kernels' names
  std::uint32_t bits;       // of a code, where several formats share a name
  int units;                // of a stage
  int parts;                // threads that arrange a tile
  int sum_lanes;            // of `prepare`, whose codes' sums belong together
  bool grouped;             // it keeps scales apart, in groups of a size of the matrix
  int (*tile_bytes)(const FormatArguments&);
  void (*arrange)(Weights matrix, FormatArguments format, std::uint8_t* to, int stages,
                  long long tiles);
  void (*decode)(const std::uint8_t* weights, FormatArguments format, int tile_stages, HalfRows to);
  void (*few)(Arguments);   // 4 rows
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
constexpr float kLargest = 32600;      // of a 16-bit activation: both planes in s8
constexpr int kExactInt = 0x4b400000;  // as a float, 1.5 · 2²³: sums below 2²² are its last bits
constexpr float kExact = 12582912.0f;

// A unit's activations for fragments of four rows, in bytes from its beginning: the operands, then
// the sums of the codes of each group of 16 or 32 inputs, then the rows' scales.
template <int kFragments>
struct ActivationUnit {
  static constexpr int kRows = 4 * kFragments;
  static constexpr int kOperand = 4 * kFragments * 256;
  static constexpr int kSums = 8 * kRows * 4;
  static constexpr int kBytes = kOperand + kSums + kRows * 4;
};

// A block for each unit of inputs and fragment of four rows, a warp for each of them, four inputs a
// lane.
template <int kFragments>
__global__ void __launch_bounds__(128)
    prepare(const float* x, std::uint8_t* units, int rows, int inputs, int sum_lanes) {
  using Unit = ActivationUnit<kFragments>;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int fragment = blockIdx.y;
  const int row = fragment * 4 + warp;
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
  largest =
      __uint_as_float(__reduce_max_sync(~0u, finite ? __float_as_uint(largest) : 0x7fc00000u));
  const float to_code = largest > 0 ? fminf(kLargest / largest, 3.0e38f) : 0.0f;
  std::uint32_t high = 0;
  std::uint32_t low = 0;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int code = __float2int_rn(values[i] * to_code);
    const int upper = (code + 128) >> 8;
    high |= static_cast<std::uint32_t>(upper & 255) << (8 * i);
    low |= static_cast<std::uint32_t>((code - upper * 256) & 255) << (8 * i);
    sum += code;
  }
  std::uint8_t* unit = units + static_cast<std::size_t>(blockIdx.x) * Unit::kBytes;
  const int step = lane / 8;
  const int four = lane % 8;  // of the step's eight
  std::uint8_t* to =
      unit + (step * kFragments + fragment) * 256 + (2 * warp * 4 + four % 4) * 8 + four / 4 * 4;
  *reinterpret_cast<std::uint32_t*>(to) = high;
  *reinterpret_cast<std::uint32_t*>(to + 32) = low;
  for (int apart = 1; apart < sum_lanes; apart *= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  float* sums = reinterpret_cast<float*>(unit + Unit::kOperand);
  if (lane % sum_lanes == 0) {
    sums[lane / sum_lanes * Unit::kRows + row] = static_cast<float>(sum);
  }
  if (lane == 0) sums[8 * Unit::kRows + row] = largest / kLargest;
}

template <bool kSigned>
__device__ inline void multiply32(int (&d)[4], const std::uint32_t (&a)[4], uint2 b) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
  }
}
template <bool kSigned>
__device__ inline void multiply16(int (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                  std::uint32_t b) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
  }
}

// Both planes' sums as one number: 256 · high + low.
__device__ inline float joined(int high, int low) {
  return fmaf(__int_as_float(high), 256.0f, -256.0f * kExact) + (__int_as_float(low) - kExact);
}

// Adds a stage's products to a lane's totals, of outputs lane / 4 and lane / 4 + 8 of the warp's
// tile and row 4f + lane % 4.
template <typename Format, int kFragments>
__device__ inline void multiply_stage(float (&total)[kFragments][2], const std::uint8_t* tile,
                                      const std::uint8_t* activations,
                                      const FormatArguments& format, int lane) {
  using Bits = typename Format::Bits;
  using Unit = ActivationUnit<kFragments>;
  constexpr int kGroup = Format::kGroup;
  const std::uint8_t* header = tile + Format::kUnits * kUnit * kTileRows * Bits::kBits / 8;
  const typename Format::Row above(header, lane / 4, format);
  const typename Format::Row below(header, lane / 4 + 8, format);
#pragma unroll
  for (int u = 0; u < Format::kUnits; ++u) {
    const std::uint8_t* unit = activations + u * Unit::kBytes;
    const float* sums = reinterpret_cast<const float*>(unit + Unit::kOperand) + lane % 4;
    float acc[kFragments][2] = {};
    int d[kFragments][4];
    // The scale of `group` of the stage, whose sums are in d; its codes' sums begin at `first`, of
    // `count`.
    const auto finish = [&](int group, int first, int count) {
      const float scale[2] = {above.scale(group), below.scale(group)};
      float offset[2] = {};
      if constexpr (Format::kOffset) {
        offset[0] = above.offset(group);
        offset[1] = below.offset(group);
      }
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        float sum = 0;
        if constexpr (Format::kOffset) {
          sum = sums[first * Unit::kRows + 4 * f];
          for (int i = 1; i < count; ++i) sum += sums[(first + i) * Unit::kRows + 4 * f];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          acc[f][i] = fmaf(scale[i], joined(d[f][2 * i], d[f][2 * i + 1]), acc[f][i]);
          if constexpr (Format::kOffset) acc[f][i] = fmaf(offset[i], sum, acc[f][i]);
        }
      }
    };
    const auto clear = [&](int f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d[f][i] = kExactInt;
    };
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int step = u * 4 + s;
      std::uint32_t a[4];
      Bits::read(a, tile, lane, step, Format::kUnits);
      uint2 b[kFragments];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        b[f] = load<uint2>(unit + (s * kFragments + f) * 256 + lane * 8);
      }
      if constexpr (kGroup == 16) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int f = 0; f < kFragments; ++f) {
            clear(f);
            multiply16<Bits::kSigned>(d[f], a[2 * half], a[2 * half + 1],
                                      half == 0 ? b[f].x : b[f].y);
          }
          finish(2 * step + half, 2 * s + half, 1);
        }
      } else {
        constexpr int kSteps = kGroup / 32;
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          if (s % kSteps == 0) clear(f);
          multiply32<Bits::kSigned>(d[f], a, b[f]);
        }
        if (s % kSteps == kSteps - 1) finish(step / kSteps, s / kSteps * kSteps, kSteps);
      }
    }
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const float scale = sums[8 * Unit::kRows + 4 * f];
#pragma unroll
      for (int i = 0; i < 2; ++i) total[f][i] = fmaf(acc[f][i], scale, total[f][i]);
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
template <int kFragments>
__device__ inline void finish_tile(const Arguments& args, const float (&total)[kFragments][2],
                                   int begin, int end, int first, int lane, int warp) {
  constexpr int kRows = 4 * kFragments;
  const int tile = begin / args.tile_stages;
  const MatrixArguments& matrix = matrix_of(args, begin);
  const int first_output = (tile - matrix.first_stage / args.tile_stages) * kTileOutputs;
  const int place = warp * kTileRows + lane / 4;
  if (end - begin == args.tile_stages) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        write_out(matrix, args.rows, total[f][i], 4 * f + lane % 4, first_output + place + 8 * i);
      }
    }
    return;
  }
  __shared__ bool last;
  const int blocks = gridDim.x;
  const int from = block_of(args, tile * args.tile_stages, blocks);
  const int to = block_of(args, (tile + 1) * args.tile_stages - 1, blocks);
  // A block has room for two parts: of the tile in which its run begins, and of that in which it
  // ends. Of a tile's blocks only the first may have begun before it.
  const auto part_of = [&](int block, int second) {
    return args.partial + (2 * static_cast<std::size_t>(block) + second) * kRows * kTileOutputs;
  };
  float* part = part_of(blockIdx.x, first < tile * args.tile_stages ? 1 : 0);
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      part[(4 * f + lane % 4) * kTileOutputs + place + 8 * i] = total[f][i];
    }
  }
  __threadfence();
  meet();
  if (threadIdx.x == 0) {
    last = atomicAdd(&args.arrived[tile], 1u) == static_cast<unsigned>(to - from);
    if (last) args.arrived[tile] = 0;
    __threadfence();
  }
  meet();
  if (!last) return;
  constexpr int kTogether = 8;  // loads that overlap
  const int second = run_begin(args, from, blocks) < tile * args.tile_stages ? 1 : 0;
  for (int i = threadIdx.x; i < args.rows * kTileOutputs; i += kWarps * 32) {
    float sum = 0;
    for (int b = from; b <= to; b += kTogether) {
      float some[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        some[j] = b + j <= to ? __ldcg(part_of(b + j, b + j == from ? second : 0) + i) : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) sum += some[j];
    }
    write_out(matrix, args.rows, sum, i / kTileOutputs, first_output + i % kTileOutputs);
  }
}

template <typename Format, int kFragments>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor) product(const Arguments args) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  const int tile_bytes = tile_bytes_of<Format>(args.format);
  const int weight_bytes = tile_bytes * kWarps;
  constexpr int kActivationBytes = Format::kUnits * ActivationUnit<kFragments>::kBytes;
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
  float total[kFragments][2] = {};
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
    multiply_stage<Format, kFragments>(total, weights + warp * tile_bytes, activations, args.format,
                                       lane);
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (lane == 0) barrier_arrive(&empty[slot]);
#endif
    if ((stage + 1) % args.tile_stages == 0 || i + 1 == count) {
      finish_tile<kFragments>(args, total, begin, stage + 1, first, lane, warp);
      begin = stage + 1;
#pragma unroll
      for (int f = 0; f < kFragments; ++f) total[f][0] = total[f][1] = 0;
    }
  }
}

template <typename Format>
constexpr Kernels kernels_of(std::string_view name, std::uint32_t bits = 0, bool grouped = false) {
  return {.format = name,
          .bits = bits,
          .units = Format::kUnits,
          .parts = Format::kUnits * kUnit * kTileRows * Format::Bits::kBits / 32 + kTileRows,
          .sum_lanes = Format::kGroup == 16 ? 4 : 8,
          .grouped = grouped,
          .tile_bytes = tile_bytes_of<Format>,
          .arrange = arrange_kernel<Format>,
          .decode = decode_kernel<Format>,
          .few = product<Format, 1>,
          .some = product<Format, 2>,
          .many = product<Format, 4>};
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

int fragments_of(std::uint32_t rows) { return rows <= 4 ? 1 : rows <= 8 ? 2 : 4; }
int unit_bytes(int fragments) {
  return fragments == 1   ? ActivationUnit<1>::kBytes
         : fragments == 2 ? ActivationUnit<2>::kBytes
                          : ActivationUnit<4>::kBytes;
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
  const int fragments = fragments_of(rows);
  return kCountBytes +
         std::size_t{2} * kBlocksPerProcessor * kMostProcessors * 4 * fragments * kTileOutputs * 4 +
         static_cast<std::size_t>(shape_of(layer).units) * unit_bytes(fragments);
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
  const int fragments = fragments_of(rows);
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
  std::uint8_t* activations =
      base + kCountBytes +
      std::size_t{2} * kBlocksPerProcessor * kMostProcessors * 4 * fragments * kTileOutputs * 4;
  args.activations = activations;
  args.format = arguments_of(layer);
  args.rows = static_cast<int>(rows);
  args.tile_stages = shape.tile_stages;
  const int stage_bytes =
      kernels.tile_bytes(args.format) * kWarps + kernels.units * unit_bytes(fragments);
  constexpr int kReserved = 2048;  // of a block: CUDA's own, and the barriers
  args.ring =
      std::min(kMostRing, (limits.shared_bytes / kBlocksPerProcessor - kReserved) / stage_bytes);
  if (args.ring < 1 || limits.multiprocessors > static_cast<int>(kMostProcessors)) {
    return work_error(
        "codes: this GPU has {} multiprocessors of {} bytes of shared memory, expected "
        "at most {} of at least {}",
        limits.multiprocessors, limits.shared_bytes, kMostProcessors,
        kBlocksPerProcessor * (stage_bytes + kReserved));
  }
  const int shared_bytes = limits.major == 9 ? args.ring * stage_bytes : 0;
  const auto kernel = fragments == 1 ? kernels.few : fragments == 2 ? kernels.some : kernels.many;
  ESPALIER_CHECK(cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
      "codes: asking for shared memory"));
  const auto prepare_kernel = fragments == 1   ? prepare<1>
                              : fragments == 2 ? prepare<2>
                                               : prepare<4>;
  ESPALIER_CHECK(launch_overlapping(prepare_kernel, dim3(shape.units, fragments), 128, 0, limits,
                                    stream, x, activations, static_cast<int>(rows),
                                    static_cast<int>(layer.inputs), kernels.sum_lanes));
  const int blocks =
      std::min(kBlocksPerProcessor * limits.multiprocessors, args.tiles * args.tile_stages);
  return launch_overlapping(kernel, dim3(blocks), kThreads, shared_bytes, limits, stream, args);
}

}  // namespace espalier::gpu::cuda::codes
