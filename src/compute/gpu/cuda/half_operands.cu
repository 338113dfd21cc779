// How packed weights and activations become halves. Blocks and groups are decoded by the portable
// decoders, eight inputs of an output in each thread, which leave as one store of 16 bytes. EXL3's
// rotation of the outputs is undone while the weights are decoded, so that nothing is left to do
// after the product; that of the inputs, while activations are rounded.
#include "compute/gpu/cuda/half_operands.h"

#include <algorithm>
#include <span>
#include <type_traits>

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

// --- Which weights a thread decodes, and what becomes of them
// -------------------------------------

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kEach = 4;  // eights of weights in a thread: read before any is written

// Eights that lie side by side in a row; in some rows.
struct AlongInputs {
  static constexpr std::uint32_t kOutputs = kEach, kInputs = kThreads * 8;  // of a block
  static __device__ std::uint32_t output(std::uint32_t, std::uint32_t i) { return i; }
  static __device__ std::uint32_t input(std::uint32_t thread, std::uint32_t) { return thread * 8; }
};
// Of formats whose neighbours are outputs of an input.
struct AlongOutputs {
  static constexpr std::uint32_t kOutputs = 32, kEights = kEach * kThreads / 32;
  static constexpr std::uint32_t kInputs = kEights * 8;
  static __device__ std::uint32_t output(std::uint32_t thread, std::uint32_t) {
    return thread % 32;
  }
  static __device__ std::uint32_t input(std::uint32_t thread, std::uint32_t i) {
    return (i * (kThreads / 32) + thread / 32) * 8;
  }
};

struct StoreHalves {
  std::uint16_t* halves;  // [outputs, stride]
  std::uint32_t stride;
  const HalfScale* scale;

  __device__ uint4 packed(const float (&values)[8]) const {
    const float factor = scale->factor;
    uint4 result;
    auto* const pairs = reinterpret_cast<__half2*>(&result);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = __floats2half2_rn(values[2 * i] * factor, values[2 * i + 1] * factor);
    }
    return result;
  }
  __device__ void store(std::uint32_t output, std::uint32_t input, std::uint32_t count,
                        const uint4& eight) const {
    if (output >= count || input >= stride) return;
    *reinterpret_cast<uint4*>(halves + static_cast<std::size_t>(output) * stride + input) = eight;
  }
  __device__ void put(AlongInputs, const float (&values)[kEach][8], std::uint32_t count) const {
#pragma unroll
    for (std::uint32_t i = 0; i < kEach; ++i) {
      store(blockIdx.x * kEach + i, blockIdx.y * AlongInputs::kInputs + threadIdx.x * 8, count,
            packed(values[i]));
    }
  }
  // Through shared memory, so that a warp writes a row.
  __device__ void put(AlongOutputs, const float (&values)[kEach][8], std::uint32_t count) const {
    using Places = AlongOutputs;
    __shared__ uint4 tile[Places::kOutputs][Places::kEights + 1];
#pragma unroll
    for (std::uint32_t i = 0; i < kEach; ++i) {
      tile[Places::output(threadIdx.x, i)][Places::input(threadIdx.x, i) / 8] = packed(values[i]);
    }
    __syncthreads();
#pragma unroll
    for (std::uint32_t i = 0; i < kEach; ++i) {
      const std::uint32_t output = i * (kThreads / 32) + threadIdx.x / 32;
      const std::uint32_t eight = threadIdx.x % 32;
      store(blockIdx.x * Places::kOutputs + output, blockIdx.y * Places::kInputs + eight * 8, count,
            tile[output][eight]);
    }
  }
};

struct FindLargest {
  std::uint32_t* to;

  template <typename Places>
  __device__ void put(Places, const float (&values)[kEach][8], std::uint32_t) const {
    std::uint32_t bits = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kEach * 8; ++i) {
      bits = max(bits, magnitude_bits(values[i / 8][i % 8]));
    }
    put_bits(bits);
  }
  __device__ void put_bits(std::uint32_t bits) const {
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

// Eight weights of output `row` from input `col` on, a multiple of 8: what the format's weight()
// gives, which eight inputs of a block or group share as far as compilers see that they do.
template <typename Format>
struct Eight {
  static __device__ void decode(const Weights& w, std::uint32_t row, std::uint32_t col,
                                float (&values)[8]) {
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      values[i] = col + i < w.cols ? Format::weight(w, row, col + i) : 0;
    }
  }
};

// Where blocks are whole eights, there is no tail.
template <typename Block>
__device__ inline Codes block_of(const Weights& w, std::uint32_t row, std::uint32_t col) {
  return w.data +
         (static_cast<std::uint64_t>(row) * (w.cols / Block::kValues) + col / Block::kValues) *
             Block::kBytes;
}
template <typename Block>
requires(Block::kValues % 8 == 0) struct Eight<Blocks<Block>> {
  static __device__ void decode(const Weights& w, std::uint32_t row, std::uint32_t col,
                                float (&values)[8]) {
    const Codes block = block_of<Block>(w, row, col);
    const std::uint32_t eight = col / 8 % (Block::kValues / 8);
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) values[i] = Block::value(block, eight * 8 | i);
  }
};
template <typename Block>
struct Eight<GridBlocks<Block>> {
  static __device__ void decode(const Weights& w, std::uint32_t row, std::uint32_t col,
                                float (&values)[8]) {
    const Codes block = block_of<Block>(w, row, col);
    const std::uint32_t eight = col / 8 % (Block::kValues / 8);
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) values[i] = Block::value(block, eight * 8 | i, w.grid);
  }
};

// Plain numbers: 16 bytes at a time where rows are aligned to that.
template <typename Block>
requires(Block::kValues == 1) struct Eight<Blocks<Block>> {
  static __device__ void decode(const Weights& w, std::uint32_t row, std::uint32_t col,
                                float (&values)[8]) {
    const std::size_t at = static_cast<std::size_t>(row) * w.cols + col;
    if (w.cols % 8 != 0) {
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) {
        if (col + i < w.cols) values[i] = Block::value(w.data + (at + i) * Block::kBytes, 0);
      }
      return;
    }
    uint4 bytes[Block::kBytes / 2];
#pragma unroll
    for (std::uint32_t i = 0; i < Block::kBytes / 2; ++i) {
      bytes[i] = reinterpret_cast<const uint4*>(w.data + at * Block::kBytes)[i];
    }
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      values[i] = Block::value(reinterpret_cast<Codes>(bytes) + i * Block::kBytes, 0);
    }
  }
};

// Groups are whole eights, and eight codes whole bytes.
template <typename Format>
requires std::is_base_of_v<MlxWeights<Format>, Format>
struct Eight<Format> {
  static __device__ void decode(const Weights& w, std::uint32_t row, std::uint32_t col,
                                float (&values)[8]) {
    const std::uint32_t bits = w.block_bytes * 8 / w.block_values;
    const std::uint64_t index = mlx_group(w, row, col);
    const MlxGroup group = Format::group(w, index);
    const std::uint32_t in_group = col % w.block_values;
    const Codes from = w.data + index * w.block_bytes + in_group / 8 * bits;
    std::uint64_t codes = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      if (i < bits) codes |= static_cast<std::uint64_t>(from[i]) << (8 * i);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      const auto code = static_cast<std::uint32_t>(codes >> (i * bits));
      values[i] = Format::value(group, code & ((1u << bits) - 1));
    }
  }
};

// Inputs of one group, unless they are in another order.
template <typename Format>
requires std::is_base_of_v<Int4Weights<Format>, Format>
struct Eight<Format> {
  static __device__ void decode(const Weights& w, std::uint32_t row, std::uint32_t col,
                                float (&values)[8]) {
    if (w.input_group != nullptr || w.block_values % 8 != 0) {
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) values[i] = Format::weight(w, row, col + i);
      return;
    }
    const std::uint32_t group = col / w.block_values;
    const float scale = Format::scale(w, row, group);
    const auto zero = static_cast<std::int32_t>(Format::zero(w, row, group));
    const std::uint32_t eight = col / 8;
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      values[i] = scale * centered(Format::code(w, row, eight * 8 | i), zero);
    }
  }
};

template <typename Format, typename Sink>
__global__ void __launch_bounds__(kThreads)
    decode_blocks(const __grid_constant__ Weights weights, std::uint32_t first, std::uint32_t count,
                  const Sink sink) {
  using Places = typename Order<Format>::Type;
  float values[kEach][8] = {};
#pragma unroll
  for (std::uint32_t i = 0; i < kEach; ++i) {
    // Of outputs that are not there the last again.
    const std::uint32_t output =
        min(blockIdx.x * Places::kOutputs + Places::output(threadIdx.x, i), count - 1);
    const std::uint32_t input = blockIdx.y * Places::kInputs + Places::input(threadIdx.x, i);
    if (input < weights.cols) Eight<Format>::decode(weights, first + output, input, values[i]);
  }
  sink.put(Places(), values, count);
}

// A decoder as a value.
struct Launch {
  cudaStream_t stream;
  const PackedOperand& matrix;
  std::uint32_t first, count;
};

Status too_many_inputs(std::uint32_t inputs, std::uint32_t block_inputs) {
  return input_error("project: found {} inputs, expected at most {}", inputs,
                     block_inputs * kMostBlocksY);
}

Status launched() { return check(cudaGetLastError(), "decoding weights"); }

template <typename Format, typename Sink>
Status launch_blocks(const Launch& at, const Sink& sink) {
  using Places = typename Order<Format>::Type;
  const auto blocks = [](std::uint32_t count, std::uint32_t each) {
    return (count + each - 1) / each;
  };
  const dim3 grid(blocks(at.count, Places::kOutputs),
                  blocks(at.matrix.weights.cols, Places::kInputs));
  if (grid.y > kMostBlocksY) {
    return too_many_inputs(at.matrix.weights.cols, Places::kInputs);
  }
  decode_blocks<Format>
      <<<grid, kThreads, 0, at.stream>>>(at.matrix.weights, at.first, at.count, sink);
  return launched();
}

// --- EXL3 ----------------------------------------------------------------------------------------

// Two weights, of 16-bit states, in one register; the same bits as in kernels/exl3.h, by the sums
// of halves that define them.
template <typename Codebook>
__device__ __half2 exl3_weights(std::uint32_t a, std::uint32_t b);

__device__ inline __half2 as_halves(std::uint32_t bits) {
  return reinterpret_cast<const __half2&>(bits);
}
__device__ inline __half2 sum_of_halves(std::uint32_t a, std::uint32_t b) {
  a = (a & 0x8fff8fffu) ^ 0x3b603b60u;
  b = (b & 0x8fff8fffu) ^ 0x3b603b60u;
  return __hadd2(as_halves(__byte_perm(a, b, 0x5410)), as_halves(__byte_perm(a, b, 0x7632)));
}
template <>
__device__ inline __half2 exl3_weights<Mul1>(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint32_t kOnes = 0x01010101, kThousand = 0x6400;  // 1024 + bytes, as a half
  a = __dp4a(a * 0x83dcd12du, kOnes, kThousand);
  b = __dp4a(b * 0x83dcd12du, kOnes, kThousand);
  return __hfma2(as_halves(__byte_perm(a, b, 0x5410)), as_halves(0x1eee1eeeu),
                 as_halves(0xc931c931u));
}
template <>
__device__ inline __half2 exl3_weights<Mcg>(std::uint32_t a, std::uint32_t b) {
  return sum_of_halves(a * 0xcbac1fedu, b * 0xcbac1fedu);
}
template <>
__device__ inline __half2 exl3_weights<ThreeInst>(std::uint32_t a, std::uint32_t b) {
  return sum_of_halves(a * 89226354u + 64248484u, b * 89226354u + 64248484u);
}

struct Trellis {
  const std::uint32_t* words;
  const __half* svh;
  std::uint32_t input_tiles, output_tiles;
  bool arranged;
};

// A block has a group of 128 outputs along x and a quad of 64 inputs along y: 8 by 4 tiles.
constexpr std::uint32_t kQuadTiles = 4, kGroupTiles = kRun / 16;
constexpr std::uint32_t kQuadInputs = kQuadTiles * 16;
constexpr std::uint32_t kExl3Threads = kQuadTiles * 32;  // a warp for each 16 inputs

// The block's tiles as they are in the file, [quad tiles][group tiles]: as many words for each
// thread as twice the bits.
template <std::uint32_t kDoubleBits>
__device__ inline void load_tiles(const Trellis& trellis, std::uint32_t group,
                                  std::uint32_t* tiles) {
  constexpr std::uint32_t kTileWords = 4 * kDoubleBits;
  if (!trellis.arranged) {
    constexpr std::uint32_t kRowWords = kGroupTiles * kTileWords;
#pragma unroll
    for (std::uint32_t word = 0; word < kDoubleBits; ++word) {
      const std::uint32_t i = word * kExl3Threads + threadIdx.x;
      const std::size_t tile =
          static_cast<std::size_t>(blockIdx.y * kQuadTiles + i / kRowWords) * trellis.output_tiles +
          group * kGroupTiles;
      tiles[i] = trellis.words[tile * kTileWords + i % kRowWords];
    }
    return;
  }
  // As exl3_mul1_arrange puts them: items of two tiles in a quad; in an item the words of a lane by
  // fours, then twos, then ones; a lane has two columns of both tiles in one of the quad's.
  constexpr int kItemWords = kDoubleBits * 32;
  constexpr int kFours = kDoubleBits / 4 * 4;
  constexpr int kTwos = kDoubleBits % 4 / 2 * 2;
  auto* const halves = reinterpret_cast<std::uint16_t*>(tiles);
#pragma unroll
  for (int each = 0; each < static_cast<int>(kDoubleBits); ++each) {
    const int i = each * static_cast<int>(kExl3Threads) + static_cast<int>(threadIdx.x);
    const int pair = i / kItemWords;  // of the group
    const int at = i % kItemWords;
    const std::size_t item =
        (static_cast<std::size_t>(group * 2 + pair / 2) * (trellis.input_tiles / 4) + blockIdx.y) *
            2 +
        pair % 2;
    const std::uint32_t word = trellis.words[item * kItemWords + at];
    int lane = at % 32;
    int first = 2 * (at / 32);  // half of the lane's words
    if (at < kFours * 32) {
      lane = at % 128 / 4;
      first = 2 * (at / 128 * 4 + at % 4);
    } else if (at < (kFours + kTwos) * 32) {
      lane = (at - kFours * 32) / 2;
      first = 2 * (kFours + at % 2);
    }
#pragma unroll
    for (int half = first; half < first + 2; ++half) {
      const std::uint32_t tile =
          lane % 4 * kGroupTiles + pair * 2 + half / static_cast<int>(kDoubleBits);
      const std::uint32_t piece = lane / 4 * kDoubleBits + half % kDoubleBits;
      // Of a word the upper half comes first.
      halves[tile * (2 * kTileWords) + (piece ^ 1)] =
          static_cast<std::uint16_t>(half == first ? word >> 16 : word);
    }
  }
}

// A lane's eight weights of a tile, outputs lane / 4 and that plus 8, inputs 2 · (lane mod 4) and
// three more. Their states end after each K bits of 8·K that are the lane's own; the first begin up
// to 16 bits before.
template <std::uint32_t kDoubleBits, typename Codebook>
__device__ inline void decode_tile(const std::uint32_t* tile, std::uint32_t lane,
                                   __half2 (&weights)[4]) {
  constexpr std::uint32_t kTileWords = 4 * kDoubleBits;
  constexpr std::uint32_t kBits = 16 + 4 * kDoubleBits;
  constexpr std::uint32_t kWords = (kBits + 31) / 32;
  constexpr std::uint32_t kRing = kTileWords * 32;  // a tile's bits
  const std::uint32_t begin = (lane * 4 * kDoubleBits + kRing - 16) % kRing;
  std::uint32_t words[kWords + 1];
#pragma unroll
  for (std::uint32_t i = 0; i <= kWords; ++i) {
    const std::uint32_t at = begin / 32 + i;
    words[i] = tile[at < kTileWords ? at : at - kTileWords];
  }
#pragma unroll
  for (std::uint32_t i = 0; i < kWords; ++i) {
    words[i] = __funnelshift_l(words[i + 1], words[i], begin % 32);
  }
  const auto state = [&](std::uint32_t i) {
    const std::uint32_t at = (i + 1) * kDoubleBits / 2;
    const std::uint32_t word = at / 32;
    const std::uint32_t shift = at % 32;
    if (shift <= 16) return words[word] >> (16 - shift) & 0xffff;
    return __funnelshift_r(words[word + 1], words[word], 48 - shift) & 0xffff;
  };
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    weights[i] = exl3_weights<Codebook>(state(2 * i), state(2 * i + 1));
  }
}

// A warp's 8 × 8 halves, a row in four lanes, as their transpose.
__device__ inline std::uint32_t transposed(__half2 pair) {
  std::uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
               : "=r"(result)
               : "r"(reinterpret_cast<const std::uint32_t&>(pair)));
  return result;
}

// sums [16 × 8] += a [16 × 16] · b [16 × 8], as PTX lays them out in a warp.
__device__ inline void multiply(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The Hadamard matrix of 16 as the first operand of a product.
__device__ inline void hadamard_operand(std::uint32_t (&a)[4], std::uint32_t lane) {
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t row = lane / 4 + i % 2 * 8;
    const std::uint32_t col = lane % 4 * 2 + i / 2 * 8;
    const std::uint32_t low = __popc(row & col) % 2 << 15;
    const std::uint32_t high = __popc(row & (col + 1)) % 2 << 31;
    a[i] = 0x3c003c00u | low | high;  // ±1
  }
}

// The transform of 128 outputs is that of 16 in each tile, a product of matrices, and of 8 between
// tiles, which a lane has in registers.
template <std::uint32_t kDoubleBits, typename Codebook>
__global__ void __launch_bounds__(kExl3Threads)
    decode_exl3(const __grid_constant__ Trellis trellis, std::uint32_t first, std::uint32_t count,
                const StoreHalves to) {
  constexpr std::uint32_t kTileWords = 4 * kDoubleBits;
  constexpr std::uint32_t kPitch = kQuadInputs + 8;
  __shared__ __align__(16) std::uint32_t tiles[kQuadTiles * kGroupTiles * kTileWords];
  __shared__ __align__(16) __half2 decoded[kRun * kPitch / 2];
  __shared__ float scales[kRun];
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t row = blockIdx.x * kRun;  // of the result
  load_tiles<kDoubleBits>(trellis, first / kRun + blockIdx.x, tiles);
  scales[threadIdx.x] =
      __half2float(trellis.svh[first + row + threadIdx.x]) * kHadamardScale * to.scale->factor;
  __syncthreads();
  std::uint32_t hadamard[4];
  hadamard_operand(hadamard, lane);
  float values[kGroupTiles][2][4] = {};
#pragma unroll
  for (std::uint32_t t = 0; t < kGroupTiles; ++t) {
    __half2 weights[4];
    decode_tile<kDoubleBits, Codebook>(tiles + (warp * kGroupTiles + t) * kTileWords, lane,
                                       weights);
    multiply(values[t][0], hadamard, transposed(weights[0]), transposed(weights[2]));
    multiply(values[t][1], hadamard, transposed(weights[1]), transposed(weights[3]));
  }
#pragma unroll
  for (std::uint32_t apart = 1; apart < kGroupTiles; apart *= 2) {
#pragma unroll
    for (std::uint32_t i = 0; i < kGroupTiles * 8; ++i) {
      const std::uint32_t t = i / 8;
      if ((t & apart) != 0) continue;
      const float a = values[t][i / 4 % 2][i % 4];
      const float b = values[t + apart][i / 4 % 2][i % 4];
      values[t][i / 4 % 2][i % 4] = a + b;
      values[t + apart][i / 4 % 2][i % 4] = a - b;
    }
  }
#pragma unroll
  for (std::uint32_t i = 0; i < kGroupTiles * 4; ++i) {
    const std::uint32_t output = i / 4 * 16 + i % 2 * 8 + lane / 4;
    const std::uint32_t input = warp * 16 + i / 2 % 2 * 8 + lane % 4 * 2;
    const float* const pair = values[i / 4][i / 2 % 2] + i % 2 * 2;
    const float scale = scales[output];
    decoded[(output * kPitch + input) / 2] = __floats2half2_rn(pair[0] * scale, pair[1] * scale);
  }
  __syncthreads();
  constexpr std::uint32_t kFours = kQuadInputs / 8;  // of a row, 16 bytes each
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < kRun * kFours; i += kExl3Threads) {
    const std::uint32_t output = i / kFours;
    const std::uint32_t input = i % kFours * 8;
    if (row + output >= count) break;
    *reinterpret_cast<uint4*>(to.halves + static_cast<std::size_t>(row + output) * to.stride +
                              blockIdx.y * kQuadInputs + input) =
        *reinterpret_cast<const uint4*>(decoded + (output * kPitch + input) / 2);
  }
}

// By twice the bits.
using Exl3Kernel = void (*)(Trellis, std::uint32_t, std::uint32_t, StoreHalves);
template <typename Codebook>
constexpr Exl3Kernel kExl3Kernels[] = {nullptr,
                                       nullptr,
                                       decode_exl3<2, Codebook>,
                                       decode_exl3<3, Codebook>,
                                       decode_exl3<4, Codebook>,
                                       decode_exl3<5, Codebook>,
                                       decode_exl3<6, Codebook>,
                                       decode_exl3<7, Codebook>,
                                       decode_exl3<8, Codebook>,
                                       nullptr,
                                       decode_exl3<10, Codebook>,
                                       nullptr,
                                       decode_exl3<12, Codebook>,
                                       nullptr,
                                       decode_exl3<14, Codebook>,
                                       nullptr,
                                       decode_exl3<16, Codebook>};

template <typename Codebook>
Status launch_exl3(const Launch& at, const StoreHalves& to) {
  const Weights& weights = at.matrix.weights;
  const std::uint32_t double_bits = weights.block_bytes / 16;
  const Trellis trellis = {.words = reinterpret_cast<const std::uint32_t*>(weights.data),
                           .svh = reinterpret_cast<const __half*>(at.matrix.output_scale),
                           .input_tiles = weights.cols / 16,
                           .output_tiles = weights.rows / 16,
                           .arranged = at.matrix.arranged};
  const dim3 grid((at.count + kRun - 1) / kRun, weights.cols / kQuadInputs);
  const std::span<const Exl3Kernel> kernels = kExl3Kernels<Codebook>;
  if (double_bits >= kernels.size() || kernels[double_bits] == nullptr) {
    return input_error("project: found EXL3 weights of {} bits, expected 1, 1.5 … 4, 5 … 8",
                       double_bits / 2.0);
  }
  if (grid.y > kMostBlocksY) return too_many_inputs(weights.cols, kQuadInputs);
  kernels[double_bits]<<<grid, kExl3Threads, 0, at.stream>>>(trellis, at.first, at.count, to);
  return launched();
}

// The rotated weights of an output are at most √128 · 8 times its svh, and mostly near that: svh
// alone sets the scale, 2⁷ lower.
__global__ void __launch_bounds__(kThreads)
    find_largest_scale(const __half* svh, std::uint32_t count, FindLargest to) {
  std::uint32_t bits = 0;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    bits = max(bits, magnitude_bits(__half2float(svh[i]) * 128));
  }
  to.put_bits(bits);
}

Status launch_exl3_largest(const Launch& at, const FindLargest& to) {
  find_largest_scale<<<1, kThreads, 0, at.stream>>>(
      reinterpret_cast<const __half*>(at.matrix.output_scale), at.count, to);
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
  static constexpr auto kStore = &launch_exl3<Codebook>;
  static constexpr auto kLargest = &launch_exl3_largest;
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
