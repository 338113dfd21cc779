// How packed weights and activations become halves. Blocks and groups are decoded by the portable
// decoders, eight inputs of an output in each thread, which leave as one store of 16 bytes. EXL3's
// rotation of the outputs is undone while the weights are decoded, so that nothing is left to do
// after the product; that of the inputs, while activations are rounded.
#include "compute/gpu/cuda/half_operands.h"

#include <algorithm>
#include <span>

#include "compute/gpu/cuda/error.h"
#include "compute/gpu/grid.h"
#include "compute/gpu/kernels/formats.h"

namespace espalier::gpu::cuda {
namespace {

constexpr std::uint32_t kRun = kHadamardRun;
constexpr float kHadamardScale = 0.08838834764831845f;  // 1 / √128
constexpr std::uint32_t kInfinity = 0x7f800000;         // as bits; those of NaNs are above

__device__ inline std::uint32_t magnitude_bits(float value) {
  const std::uint32_t bits = __float_as_uint(value) & 0x7fffffff;
  return bits < kInfinity ? bits : 0;
}

// 2^exponent, of a normal number.
__device__ inline float power_of_two(int exponent) {
  return __uint_as_float(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// The power of two that brings a number with these bits to [2^to, 2^(to + 1)), as far as it and its
// inverse are normal numbers.
__device__ inline int exponent_to(std::uint32_t bits, int to) {
  return min(to - (static_cast<int>(bits >> 23) - 127), 126);
}

// The largest of the block's, in thread 0.
__device__ inline std::uint32_t block_largest(std::uint32_t bits) {
  __shared__ std::uint32_t warps[32];
  bits = __reduce_max_sync(~0u, bits);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = bits;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  return __reduce_max_sync(~0u, threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0);
}

// --- What becomes of decoded weights -------------------------------------------------------------

struct StoreHalves {
  std::uint16_t* halves;  // [outputs, stride]
  std::uint32_t stride;
  const HalfScale* scale;

  __device__ void eight(std::uint32_t row, std::uint32_t col, const float (&values)[8]) {
    const float factor = scale->factor;
    uint4 packed;
    auto* const pairs = reinterpret_cast<__half2*>(&packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = __floats2half2_rn(values[2 * i] * factor, values[2 * i + 1] * factor);
    }
    *reinterpret_cast<uint4*>(halves + static_cast<std::size_t>(row) * stride + col) = packed;
  }
  __device__ void one(std::uint32_t row, std::uint32_t col, float value) {
    halves[static_cast<std::size_t>(row) * stride + col] =
        __half_as_ushort(__float2half_rn(value * scale->factor));
  }
  __device__ void finish() {}
};

struct FindLargest {
  std::uint32_t* to;
  std::uint32_t bits = 0;

  __device__ void eight(std::uint32_t, std::uint32_t, const float (&values)[8]) {
#pragma unroll
    for (const float value : values) bits = max(bits, magnitude_bits(value));
  }
  __device__ void one(std::uint32_t, std::uint32_t, float value) {
    bits = max(bits, magnitude_bits(value));
  }
  __device__ void finish() {
    bits = block_largest(bits);
    if (threadIdx.x == 0) atomicMax(to, bits);
  }
};

// Makes a HalfScale of the bits that FindLargest left in its place.
__global__ void make_scale(HalfScale* scale) {
  const std::uint32_t bits = __float_as_uint(scale->factor);
  const int exponent = bits == 0 ? 0 : exponent_to(bits, 7);
  *scale = {power_of_two(exponent), power_of_two(-exponent), 1, 0};
}

// --- Blocks and groups ---------------------------------------------------------------------------

// Which weights a thread of a block decodes: neighbours are neighbours in the file.
struct AlongInputs {
  static constexpr std::uint32_t kBlockOutputs = 1, kBlockInputs = 2048;
  static __device__ std::uint32_t output(std::uint32_t) { return 0; }
  static __device__ std::uint32_t input(std::uint32_t thread) { return thread * 8; }
};
struct AlongOutputs {
  static constexpr std::uint32_t kBlockOutputs = 32, kBlockInputs = 64;
  static __device__ std::uint32_t output(std::uint32_t thread) { return thread % 32; }
  static __device__ std::uint32_t input(std::uint32_t thread) { return thread / 32 * 8; }
};
constexpr std::uint32_t kThreads = 256;

template <typename Format>
struct Order {
  using Type = AlongInputs;
};
template <typename Block>
struct Order<Transposed<Block>> {
  using Type = AlongOutputs;
};
template <std::uint32_t kAdd>
struct Order<Gptq<kAdd>> {
  using Type = AlongOutputs;
};
template <>
struct Order<Awq> {
  using Type = AlongOutputs;
};

template <typename Format>
__device__ inline void decode_eight(const Weights& weights, std::uint32_t row, std::uint32_t col,
                                    float (&values)[8]) {
  if (col + 8 <= weights.cols) {
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) values[i] = Format::weight(weights, row, col + i);
    return;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    values[i] = col + i < weights.cols ? Format::weight(weights, row, col + i) : 0;
  }
}

template <typename Format, typename Sink>
__global__ void __launch_bounds__(kThreads)
    decode_blocks(const __grid_constant__ Weights weights, std::uint32_t first, std::uint32_t count,
                  Sink sink) {
  using Places = typename Order<Format>::Type;
  const std::uint32_t row = blockIdx.x * Places::kBlockOutputs + Places::output(threadIdx.x);
  const std::uint32_t col = blockIdx.y * Places::kBlockInputs + Places::input(threadIdx.x);
  if (row < count && col < weights.cols) {
    float values[8];
    decode_eight<Format>(weights, first + row, col, values);
    sink.eight(row, col, values);
  }
  sink.finish();
}

// A decoder as a value.
struct Launch {
  cudaStream_t stream;
  const PackedOperand& matrix;
  std::uint32_t first, count;
};

Status launched() { return check(cudaGetLastError(), "decoding weights"); }

template <typename Format, typename Sink>
Status launch_blocks(const Launch& at, const Sink& sink) {
  using Places = typename Order<Format>::Type;
  const auto blocks = [](std::uint32_t count, std::uint32_t each) {
    return (count + each - 1) / each;
  };
  const dim3 grid(blocks(at.count, Places::kBlockOutputs),
                  blocks(at.matrix.weights.cols, Places::kBlockInputs));
  if (grid.y > kMostBlocksY) {
    return input_error("project: found {} inputs, expected at most {}", at.matrix.weights.cols,
                       Places::kBlockInputs * kMostBlocksY);
  }
  decode_blocks<Format>
      <<<grid, kThreads, 0, at.stream>>>(at.matrix.weights, at.first, at.count, sink);
  return launched();
}

// --- EXL3 ----------------------------------------------------------------------------------------

// A weight of a 16-bit state; the same bits as in kernels/exl3.h, by the sums of halves that define
// them.
template <typename Codebook>
__device__ __half exl3_weight(std::uint32_t state);

template <>
__device__ __half exl3_weight<Mul1>(std::uint32_t state) {
  const std::uint32_t bytes = __dp4a(state * 0x83dcd12du, 0x01010101u, 0u);
  return __hfma(__ushort_as_half(static_cast<std::uint16_t>(0x6400 + bytes)),  // 1024 + bytes
                __ushort_as_half(0x1eee), __ushort_as_half(0xc931));
}
__device__ inline __half halves_sum(std::uint32_t bits) {
  bits = (bits & 0x8fff8fffu) ^ 0x3b603b60u;
  return __hadd(__ushort_as_half(static_cast<std::uint16_t>(bits)),
                __ushort_as_half(static_cast<std::uint16_t>(bits >> 16)));
}
template <>
__device__ __half exl3_weight<Mcg>(std::uint32_t state) {
  return halves_sum(state * 0xcbac1fedu);
}
template <>
__device__ __half exl3_weight<ThreeInst>(std::uint32_t state) {
  return halves_sum(state * 89226354u + 64248484u);
}

struct Trellis {
  const std::uint16_t* bits;
  const __half* svh;
  std::uint32_t double_bits;
  std::uint32_t input_tiles, output_tiles;
  bool arranged;
};

// The 32 weights of columns `column` and `column` + 8 of a tile are consecutive bits, read 16 at a
// time: piece `at` of the tile's.
__device__ inline std::uint16_t trellis_piece(const Trellis& trellis, std::uint32_t input_tile,
                                              std::uint32_t output_tile, std::uint32_t at) {
  const std::uint32_t bits = trellis.double_bits;
  if (!trellis.arranged) {
    const std::size_t tile =
        static_cast<std::size_t>(input_tile) * trellis.output_tiles + output_tile;
    return trellis.bits[tile * 8 * bits + (at ^ 1)];  // the upper half of a word comes first
  }
  // As exl3_mul1_arrange puts it: pairs of tiles in quads, the words of a lane by fours, twos,
  // ones.
  const std::uint32_t pair = output_tile / 2;
  const std::size_t item =
      (static_cast<std::size_t>(pair / 2) * (trellis.input_tiles / 4) + input_tile / 4) * 2 +
      pair % 2;
  const std::uint32_t lane = at / bits * 4 + input_tile % 4;
  const std::uint32_t half = output_tile % 2 * bits + at % bits;
  const std::uint32_t word = half / 2;
  const std::uint32_t fours = bits / 4 * 4;
  const std::uint32_t width = word < fours ? 4 : word - fours < bits % 4 / 2 * 2 ? 2 : 1;
  const std::uint32_t chunk = word / width * width;
  const std::size_t place = item * bits * 32 + chunk * 32 + lane * width + word - chunk;
  return trellis.bits[place * 2 + (half % 2 == 0 ? 1 : 0)];
}

// 128 outputs along x, 128 inputs along y. Each thread decodes the weights of two columns of a tile
// in each half of the inputs; then each has one input and 64 outputs, and rotates them.
template <typename Codebook, typename Sink>
__global__ void __launch_bounds__(kThreads, 2)
    decode_exl3(const __grid_constant__ Trellis trellis, std::uint32_t first, std::uint32_t count,
                Sink sink) {
  constexpr std::uint32_t kPieces = 18;  // 17 of a run of 8 bits; as words an odd number
  constexpr std::uint32_t kPitch = kRun + 8;
  __shared__ std::uint16_t runs[kThreads][kPieces];
  __shared__ __align__(16) __half weights[kRun][kPitch];
  const std::uint32_t thread = threadIdx.x;
  const std::uint32_t lane = thread % 32;
  const std::uint32_t warp = thread / 32;
  const std::uint32_t bits = trellis.double_bits;
  const std::uint32_t column = lane / 4;
  const std::uint32_t tile_column = warp / 4 * 4 + lane % 4;
  const std::uint32_t group = first / kRun + blockIdx.x;
  for (std::uint32_t half = 0; half < 2; ++half) {
    const std::uint32_t tile_row = half * 4 + warp % 4;
    // The states of the first weights begin in the column before.
    std::uint16_t* const run = runs[thread];
    const std::uint32_t before = (column + 7) % 8 * bits + bits - 1;
#pragma unroll 4
    for (std::uint32_t i = 0; i <= bits; ++i) {
      run[i] = trellis_piece(trellis, blockIdx.y * 8 + tile_row, group * 8 + tile_column,
                             i == 0 ? before : column * bits + i - 1);
    }
    std::uint32_t window = run[0];
    std::uint32_t read = 0;  // bits after run[0]
    std::uint32_t end = 0;   // twice the bits up to the end of a state
    for (std::uint32_t four = 0; four < 4; ++four) {
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) {
        end += bits;
        if (end / 2 > read) {
          read += 16;
          window = window << 16 | run[read / 16];
        }
        const std::uint32_t state = window >> (read - end / 2) & 0xffff;
        const std::uint32_t input = tile_row * 16 + four * 2 + i % 4 / 2 * 8 + i % 2;
        const std::uint32_t output = tile_column * 16 + i / 4 * 8 + column;
        weights[input][output] = exl3_weight<Codebook>(state);
      }
    }
  }
  __syncthreads();
  const std::uint32_t input = thread % kRun;
  const std::uint32_t part = thread / kRun;
  float values[kRun / 2];
#pragma unroll
  for (std::uint32_t i = 0; i < kRun / 2; i += 8) {
    const uint4 low = *reinterpret_cast<const uint4*>(&weights[input][i]);
    const uint4 high = *reinterpret_cast<const uint4*>(&weights[input][i + kRun / 2]);
    const auto* const a = reinterpret_cast<const __half*>(&low);
    const auto* const b = reinterpret_cast<const __half*>(&high);
#pragma unroll
    for (std::uint32_t j = 0; j < 8; ++j) {
      const float other = __half2float(b[j]);
      values[i + j] = __half2float(a[j]) + (part == 0 ? other : -other);
    }
  }
#pragma unroll
  for (std::uint32_t apart = 1; apart < kRun / 2; apart *= 2) {
#pragma unroll
    for (std::uint32_t i = 0; i < kRun / 2; ++i) {
      if ((i & apart) != 0) continue;
      const float a = values[i];
      const float b = values[i + apart];
      values[i] = a + b;
      values[i + apart] = a - b;
    }
  }
  const std::uint32_t row = blockIdx.x * kRun + part * (kRun / 2);
#pragma unroll
  for (std::uint32_t i = 0; i < kRun / 2; ++i) {
    const float scale = __half2float(trellis.svh[first + row + i]) * kHadamardScale;
    if (row + i < count) sink.one(row + i, blockIdx.y * kRun + input, values[i] * scale);
  }
  sink.finish();
}

template <typename Codebook, typename Sink>
Status launch_exl3(const Launch& at, const Sink& sink) {
  const Weights& weights = at.matrix.weights;
  const Trellis trellis = {.bits = reinterpret_cast<const std::uint16_t*>(weights.data),
                           .svh = reinterpret_cast<const __half*>(at.matrix.output_scale),
                           .double_bits = weights.block_bytes / 16,
                           .input_tiles = weights.cols / 16,
                           .output_tiles = weights.rows / 16,
                           .arranged = at.matrix.arranged};
  const dim3 grid((at.count + kRun - 1) / kRun, weights.cols / kRun);
  if (grid.y > kMostBlocksY) {
    return input_error("project: found {} inputs, expected at most {}", weights.cols,
                       kRun * kMostBlocksY);
  }
  decode_exl3<Codebook><<<grid, kThreads, 0, at.stream>>>(trellis, at.first, at.count, sink);
  return launched();
}

// --- Every format --------------------------------------------------------------------------------

template <typename Format>
struct Launchers {
  static constexpr auto kStore = &launch_blocks<Format, StoreHalves>;
  static constexpr auto kLargest = &launch_blocks<Format, FindLargest>;
};
template <typename Codebook>
struct Launchers<Exl3<Codebook>> {
  static constexpr auto kStore = &launch_exl3<Codebook, StoreHalves>;
  static constexpr auto kLargest = &launch_exl3<Codebook, FindLargest>;
};

struct Decoder {
  std::string_view kernel;
  Status (*store)(const Launch& at, const StoreHalves& sink);
  Status (*largest)(const Launch& at, const FindLargest& sink);
};

#define ESPALIER_DECODER(name, ...) \
  {#name, Launchers<__VA_ARGS__>::kStore, Launchers<__VA_ARGS__>::kLargest},
const Decoder kDecoders[] = {ESPALIER_FORMATS(ESPALIER_DECODER)};
#undef ESPALIER_DECODER

Result<const Decoder*> find_decoder(std::string_view kernel) {
  for (const Decoder& decoder : kDecoders) {
    if (decoder.kernel == kernel) return &decoder;
  }
  return input_error("project: found weights of the kind {}, which are not decoded to halves",
                     kernel);
}

// --- Activations ---------------------------------------------------------------------------------

struct Rows {
  const float* x;     // [rows, inputs]
  const __half* suh;  // or null
  std::uint16_t* halves;
  float* inverses;
  std::uint32_t inputs, padded;
  bool by_fours;  // every four are aligned to 16 bytes
};
constexpr std::uint32_t kRowThreads = 512;
constexpr std::uint32_t kSmallExponent = 127 - 8;   // biased, of 2⁻⁸
constexpr std::uint32_t kLargeExponent = 127 + 15;  // of 2¹⁵

// Four consecutive activations from k on.
__device__ inline void load_four(float (&values)[4], const Rows& rows, const float* x,
                                 std::uint32_t k) {
  if (rows.by_fours && k < rows.inputs) {
    const float4 four = *reinterpret_cast<const float4*>(x + k);
    values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
    return;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) values[i] = k + i < rows.inputs ? x[k + i] : 0.0f;
}

struct PlainRows {
  static __device__ void load(float (&values)[4], const Rows& rows, const float* x,
                              std::uint32_t k) {
    load_four(values, rows, x, k);
  }
};
// A warp has a run of 128.
struct RotatedRows {
  static __device__ void load(float (&values)[4], const Rows& rows, const float* x,
                              std::uint32_t k) {
    load_four(values, rows, x, k);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] *= __half2float(rows.suh[k + i]);
    const float a = values[0] + values[1];
    const float b = values[0] - values[1];
    const float c = values[2] + values[3];
    const float d = values[2] - values[3];
    values[0] = a + c, values[1] = b + d, values[2] = a - c, values[3] = b - d;
#pragma unroll
    for (std::uint32_t apart = 1; apart < 32; apart *= 2) {
      const float sign = (threadIdx.x & apart) != 0 ? -1.0f : 1.0f;
#pragma unroll
      for (float& value : values) value = fmaf(sign, value, __shfl_xor_sync(~0u, value, apart));
    }
#pragma unroll
    for (float& value : values) value *= kHadamardScale;
  }
};

// A block for each row. Nearly all rows need no factor, so that they are written while their
// largest is looked for, and again only where one is needed.
template <typename Kind>
__global__ void __launch_bounds__(kRowThreads) round_rows_kernel(const Rows rows) {
  __shared__ float shared_factor;
  const std::size_t row = blockIdx.x;
  const float* const x = rows.x + row * rows.inputs;
  std::uint16_t* const to = rows.halves + row * rows.padded;
  const auto write = [&](std::uint32_t k, const float(&values)[4], float factor) {
    uint2 packed;
    auto* const pairs = reinterpret_cast<__half2*>(&packed);
    pairs[0] = __floats2half2_rn(values[0] * factor, values[1] * factor);
    pairs[1] = __floats2half2_rn(values[2] * factor, values[3] * factor);
    *reinterpret_cast<uint2*>(to + k) = packed;
  };
  std::uint32_t bits = 0;
  float values[4];
  for (std::uint32_t k = threadIdx.x * 4; k < rows.padded; k += kRowThreads * 4) {
    Kind::load(values, rows, x, k);
#pragma unroll
    for (const float value : values) bits = max(bits, magnitude_bits(value));
    write(k, values, 1);
  }
  bits = block_largest(bits);
  if (threadIdx.x == 0) {
    const std::uint32_t exponent = bits >> 23;
    const bool usual = bits == 0 || (exponent >= kSmallExponent && exponent < kLargeExponent);
    const int power = usual ? 0 : exponent_to(bits, 14);
    shared_factor = power_of_two(power);
    rows.inverses[row] = power_of_two(-power);
  }
  __syncthreads();
  const float factor = shared_factor;
  if (factor == 1) return;
  for (std::uint32_t k = threadIdx.x * 4; k < rows.padded; k += kRowThreads * 4) {
    Kind::load(values, rows, x, k);
    write(k, values, factor);
  }
}

// Few blocks, each with many rows: mostly there is nothing to do.
constexpr std::uint32_t kUndoBlocks = 1024;
__global__ void __launch_bounds__(kThreads)
    undo_kernel(const float* inverses, const float* bias, std::uint32_t rows, std::uint32_t outputs,
                float* y) {
  for (std::uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float inverse = inverses[row];
    if (inverse == 1) continue;
    float* const at = y + static_cast<std::size_t>(row) * outputs;
    for (std::uint32_t i = threadIdx.x; i < outputs; i += kThreads) {
      const float add = bias != nullptr ? bias[i] : 0;
      at[i] = (at[i] - add) * inverse + add;
    }
  }
}

}  // namespace

bool decodes_to_halves(std::string_view kernel) { return static_cast<bool>(find_decoder(kernel)); }

Status find_half_scale(Stream& stream, const PackedOperand& matrix, HalfScale* scale) {
  ESPALIER_TRY(const Decoder* const decoder, find_decoder(matrix.kernel));
  ESPALIER_CHECK(
      check(cudaMemsetAsync(scale, 0, sizeof(*scale), stream.get()), "clearing a matrix's scale"));
  ESPALIER_CHECK(decoder->largest({stream.get(), matrix, 0, matrix.weights.rows},
                                  {reinterpret_cast<std::uint32_t*>(&scale->factor)}));
  make_scale<<<1, 1, 0, stream.get()>>>(scale);
  return check(cudaGetLastError(), "finding the scale of a matrix");
}

std::uint32_t padded_inputs(const PackedOperand& matrix) {
  return (matrix.weights.cols + 7) / 8 * 8;
}

Status decode_halves(Stream& stream, const PackedOperand& matrix, const HalfScale* scale,
                     std::uint32_t first, std::uint32_t count, std::uint16_t* halves) {
  ESPALIER_TRY(const Decoder* const decoder, find_decoder(matrix.kernel));
  return decoder->store({stream.get(), matrix, first, count},
                        {halves, padded_inputs(matrix), scale});
}

Status round_rows(Stream& stream, const PackedOperand& matrix, const float* x, std::uint32_t rows,
                  std::uint32_t inputs, std::uint16_t* halves, float* inverses) {
  const Rows args = {.x = x,
                     .suh = reinterpret_cast<const __half*>(matrix.input_scale),
                     .halves = halves,
                     .inverses = inverses,
                     .inputs = inputs,
                     .padded = padded_inputs(matrix),
                     .by_fours = inputs % 4 == 0 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0};
  auto* const kernel =
      args.suh != nullptr ? round_rows_kernel<RotatedRows> : round_rows_kernel<PlainRows>;
  kernel<<<rows, kRowThreads, 0, stream.get()>>>(args);
  return check(cudaGetLastError(), "rounding activations to halves");
}

Status undo_row_factors(Stream& stream, const float* inverses, const float* bias,
                        std::uint32_t rows, std::uint32_t outputs, float* y) {
  undo_kernel<<<std::min(rows, kUndoBlocks), kThreads, 0, stream.get()>>>(inverses, bias, rows,
                                                                          outputs, y);
  return check(cudaGetLastError(), "undoing the factors of rows");
}

}  // namespace espalier::gpu::cuda
