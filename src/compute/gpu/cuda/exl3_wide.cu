// How EXL3's product of many rows runs on Hopper.
//
// A tile's 256 weights lie as the fragment of a matrix instruction, so a warp decodes them into the
// registers from which wgmma takes its left operand: outputs are the rows of the instruction, and
// the rows of x its columns. Nothing of a weight goes through memory. While one instruction runs,
// the warp decodes for the next.
//
// A block computes 128 outputs of kRows rows: two warpgroups of 64 outputs each, and one warp that
// brings weights and activations to shared memory through a ring of stages. A stage is a quad: four
// tiles along the inputs, 64 of them. Where many rows make activations the larger part of what is
// read, two blocks of a cluster, of neighbouring outputs, each bring half of them for both.
//
// Activations: exl3_wide_prepare rotates them, scales a row by a power of two, and leaves them in
// half precision as the shared memory wants them: by blocks of kRows rows, quads, rows; a row's 64
// in the order in which the lanes of a warp hold the inputs of their weights; its 16-byte chunks
// swizzled as wgmma's 128-byte mode has it.
//
// Division of the work: a tile of the result is 128 outputs (of each block of a cluster) and kRows
// rows. Most tiles are dealt out whole; those that are left when all blocks have done the same
// number are divided as one run of quads in equal parts, and the block that completes a tile adds
// up its parts in their order. The division follows from the sizes and the GPU alone.
#include <cuda_fp16.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "compute/gpu/cuda/exl3_wide.h"
#include "compute/gpu/cuda/overlap.cuh"

namespace espalier::gpu::cuda {
namespace {

constexpr int kQuad = 64;                      // inputs
constexpr int kGroup = 128;                    // outputs of a block, which are rotated together
constexpr int kWarps = 8;                      // that multiply
constexpr int kThreads = kWarps * 32;          // of them
constexpr int kBlockThreads = kThreads + 128;  // and those of the warpgroup that fetches
constexpr int kFinishRows = 32;                // that are rotated at once
constexpr int kFinishPitch = kGroup + 4;

struct Arguments {
  const std::uint32_t* weights;
  const __half* suh;
  const __half* svh;
  const float* bias;
  const float* x;
  float* y;
  std::uint32_t* arrived;  // [output blocks of the tiles in parts]: quads done; zero between calls
  float4* partial;         // [blocks, 2, kRows / 8, kThreads]
  float* row_factor;       // [rows]
  uint4* activations;      // [row blocks, quads, kRows, 8]
  int rows, inputs, outputs, padded_inputs, padded_outputs;
  int row_blocks;
  int tile_rows;  // kRows
};

// Steps of Hadamard transforms, without their factor: over the bits of the index of a lane's
// values, and over a bit of the lane. Which bits of a whole transform's index are which does not
// matter, so long as each has its step.
template <int kEach>
__device__ inline void add_and_subtract(float (&values)[kEach]) {
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
}
template <int kEach>
__device__ inline void add_and_subtract(float (&values)[kEach], int lane, int apart) {
  const float sign = (lane & apart) != 0 ? -1.0f : 1.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    values[i] = fmaf(sign, values[i], __shfl_xor_sync(~0u, values[i], apart));
  }
}

// ---- Activations.

constexpr int kPrepareThreads = 1024;

// kCount activations from input k on, a power of two, times their scales. The rows' alignment is
// that of `aligned` inputs.
template <int kCount>
__device__ inline void load_scaled(float (&values)[kCount], const Arguments& args, const float* x,
                                   int k, bool aligned) {
  using Vector = std::conditional_t<kCount == 4, float4, float2>;
  using Halves = std::conditional_t<kCount == 4, uint2, std::uint32_t>;
  Vector vector{};
  float* floats = reinterpret_cast<float*>(&vector);
  if (aligned) {
    if (k < args.inputs) vector = *reinterpret_cast<const Vector*>(x + k);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (k + i < args.inputs) floats[i] = x[k + i];
    }
  }
  Halves halves{};
  if (k < args.padded_inputs) halves = *reinterpret_cast<const Halves*>(args.suh + k);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = floats[i] * __half2float(reinterpret_cast<const __half*>(&halves)[i]);
  }
}

// The exponent of two by which a row is scaled so that its largest magnitude lies in [2⁷, 2⁸): then
// no sum of 128 leaves the range of half. At most ±126, so that the factor and its inverse are
// normal floats.
__device__ inline int row_exponent(float largest) {
  if (!(largest > 0)) return 0;
  return max(-126, min(126, 7 - ilogbf(largest)));
}

// A block for each row.
__global__ void __launch_bounds__(kPrepareThreads) exl3_wide_prepare(const Arguments args) {
  __shared__ std::uint32_t warp_most[kPrepareThreads / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int row = blockIdx.x;
  const float* x = args.x + static_cast<std::size_t>(row) * args.inputs;
  let_the_next_kernel_start();
  wait_for_the_kernel_before();

  std::uint32_t most = 0;  // a NaN's bits are larger than any number's
  const bool in_fours = args.inputs % 4 == 0;
#pragma unroll 4
  for (int k = threadIdx.x * 4; k < args.inputs; k += kPrepareThreads * 4) {
    float values[4];
    load_scaled(values, args, x, k, in_fours);
#pragma unroll
    for (float value : values) most = max(most, __float_as_uint(value) & 0x7fffffff);
  }
  most = __reduce_max_sync(~0u, most);
  if (lane == 0) warp_most[warp] = most;
  __syncthreads();
  most = __reduce_max_sync(~0u, warp_most[lane % (kPrepareThreads / 32)]);
  const bool finite = most < 0x7f800000;
  const int exponent = finite ? row_exponent(__uint_as_float(most)) : 0;
  const float scale = __uint_as_float((127 + exponent) << 23);
  if (threadIdx.x == 0) {
    // With the factors of both transforms, 1 / 128.
    const float back = __uint_as_float((127 - exponent) << 23) / kGroup;
    args.row_factor[row] = finite ? back : __uint_as_float(0x7fc00000);
  }

  // A lane takes those of a quad's inputs that are consecutive in the operand: 16 t + 8 high +
  // 2 step + {0, 1}, where the lanes of a warp hold weights of those of their tile t.
  const int quads = args.padded_inputs / kQuad;
  const int chunk = lane % 8;
  const int swizzled = chunk ^ (row % 8);
  uint4* to =
      args.activations + (static_cast<std::size_t>(row / args.tile_rows) * quads * args.tile_rows +
                          row % args.tile_rows) *
                             8;
  const bool in_twos = args.inputs % 2 == 0;
#pragma unroll 2
  for (int four = warp * 4; four < quads; four += kPrepareThreads / 32 * 4) {
    const int quad = four + lane / 8;
    const int k = quad * kQuad + chunk % 2 * 8 + chunk / 2 * 2;
    float values[8];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      float two[2];
      load_scaled(two, args, x, k + 16 * t, in_twos);
      values[2 * t] = two[0] * scale;
      values[2 * t + 1] = two[1] * scale;
    }
    add_and_subtract(values);
#pragma unroll
    for (int apart = 1; apart < 16; apart *= 2) add_and_subtract(values, lane, apart);
    uint4 out;
    __half2* halves = reinterpret_cast<__half2*>(&out);
#pragma unroll
    for (int t = 0; t < 4; ++t) halves[t] = __floats2half2_rn(values[2 * t], values[2 * t + 1]);
    if (quad < quads) to[static_cast<std::size_t>(quad) * args.tile_rows * 8 + swizzled] = out;
  }
}

// ---- Weights.

// A lane's bits of one tile of each quad, of 32 weights: of columns g and g + 8 (g is lane / 4) of
// the tile lane % 4 of the quad.
template <int kDoubleBits>
struct LaneWeights {
  static constexpr int kWords = (kDoubleBits + 1) / 2;
  // Of a state doubled to state · (2¹⁶ + 1), any two bytes of two registers brought twice into a
  // third, the product with this is that of the state with the codebook's multiplier.
  static constexpr std::uint32_t kMultiplier = 0x83dcd12du;
  static constexpr std::uint32_t kDoubledMultiplier = kMultiplier - (kMultiplier << 16);

  std::uint32_t words[kWords];
  std::uint32_t start;  // the 16 bits before the lane's own, then the first 16

  // Where word i of a lane's bits of two tiles lies (see exl3_mul1_arrange): four words of each
  // lane after the other, as often as there are four, then two, then one.
  static constexpr __device__ int place(int i, int lane) {
    constexpr int kFours = kDoubleBits / 4 * 4;
    constexpr int kTwos = kFours + kDoubleBits % 4 / 2 * 2;
    if (i < kFours) return i / 4 * 128 + lane * 4 + i % 4;
    if (i < kTwos) return kFours * 32 + lane * 2 + i % 2;
    return i * 32 + lane;
  }

  // Of the bits of two tiles in shared memory, those of the one, which is the same for a warp.
  __device__ void read(const std::uint32_t* from, int tile, int lane) {
    if constexpr (kDoubleBits % 8 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four =
            *reinterpret_cast<const uint4*>(from + tile * (kWords * 32) + place(i, lane));
        words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
      }
    } else {
      constexpr int kSecond = kDoubleBits / 2;  // the word in which the second tile begins
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        words[i] = from[tile == 0 ? place(i, lane) : place(kSecond + i, lane)];
      }
      if constexpr (kDoubleBits % 2 == 1) {  // in its middle
        const int shift = tile * 16;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          words[i] = __funnelshift_l(i + 1 < kWords ? words[i + 1] : 0, words[i], shift);
        }
      }
    }
    // What comes before a lane's own bits are the last of the column before.
    constexpr int kLast = kDoubleBits - 1;  // in halves of a word
    const std::uint32_t before = __shfl_sync(~0u, words[kLast / 2], (lane + 28) % 32);
    start = __byte_perm(words[0], before, 0x32 | (kLast % 2 == 0 ? 0x7600 : 0x5400));
  }

  // Word i without its first `shift` bits. (The compiler computes each only once.)
  __device__ std::uint32_t shifted(int i, int shift) const {
    if (shift == 0) return words[i];
    return i + 1 < kWords ? __funnelshift_l(words[i + 1], words[i], shift) : words[i] << shift;
  }

  // The product of the state of weight i; all constants once loops are unrolled.
  __device__ std::uint32_t product(int i) const {
    const int bits = (i + 1) * kDoubleBits / 2;
    const bool at_start = bits < 16;
    const int end = at_start ? 16 + bits : bits;
    const int shift = end % 8;
    const int last = end / 8 - 1;  // byte of the shifted bits
    std::uint32_t doubled;
    if (!at_start && last % 4 == 0) {
      doubled = __byte_perm(shifted(last / 4, shift), shifted(last / 4 - 1, shift), 0x4343);
    } else {
      const std::uint32_t word = at_start ? start << shift : shifted(last / 4, shift);
      const unsigned low = 3 - last % 4;
      doubled = __byte_perm(word, 0, (low | (low + 1) << 4) * 0x101);
    }
    return doubled * kDoubledMultiplier;
  }

  // Weights 8 i to 8 i + 7 as a fragment: columns g and g + 8 of two inputs, then of two others.
  __device__ void decode_eight(int i, std::uint32_t (&a)[4]) const {
    a[0] = decode_two(8 * i);
    a[1] = decode_two(8 * i + 4);
    a[2] = decode_two(8 * i + 2);
    a[3] = decode_two(8 * i + 6);
  }

  // Weights i and i + 1 as the format rounds them.
  __device__ std::uint32_t decode_two(int i) const {
    // The sum of the bytes is below 1,024, so 0x6400 + sum is the half 1024 + sum.
    const std::uint32_t a = __dp4a(product(i), 0x01010101u, 0x6400u);
    const std::uint32_t b = __dp4a(product(i + 1), 0x01010101u, 0x6400u);
    const std::uint32_t sums = __byte_perm(a, b, 0x5410);
    const std::uint32_t step = 0x1eee1eeeu;
    const std::uint32_t offset = 0xc931c931u;
    const __half2 out =
        __hfma2(reinterpret_cast<const __half2&>(sums), reinterpret_cast<const __half2&>(step),
                reinterpret_cast<const __half2&>(offset));
    return reinterpret_cast<const std::uint32_t&>(out);
  }
};

// ---- Instructions.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Barriers in shared memory: a phase is over when `count` have arrived and all bytes that were
// announced are there.
__device__ inline void make_barrier(std::uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void announce(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void arrive_at(std::uint32_t barrier, int block) {
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
      "r"(block)
      : "memory");
}
__device__ inline void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void wait_for(std::uint32_t barrier, int parity) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, "
      "[%0], %1; @done bra over; bra again; over: }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies from global memory to shared memory, of one block or to the same place in two.
__device__ inline void copy(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ inline void copy_to_both(std::uint32_t to, const void* from, int bytes,
                                    std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(static_cast<std::uint16_t>(3))
      : "memory");
}

__device__ inline void synchronize_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Of the threads that multiply.
__device__ inline void synchronize_multipliers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

__device__ inline void begin_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void end_wgmma() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wait_for_wgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define ESPALIER_8(d, i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define ESPALIER_32(d, i) \
  ESPALIER_8(d, i), ESPALIER_8(d, i + 8), ESPALIER_8(d, i + 16), ESPALIER_8(d, i + 24)

// d [64, kColumns] += a [64, 16] · b [16, kColumns]
template <int kColumns>
__device__ inline void wgmma(float* d, const std::uint32_t (&a)[4], std::uint64_t b) {
  if constexpr (kColumns == 32) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
        "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
        : ESPALIER_8(d, 0), ESPALIER_8(d, 8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (kColumns == 64) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
        "{%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
        : ESPALIER_32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (kColumns == 128) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
        "{%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
        : ESPALIER_32(d, 0), ESPALIER_32(d, 32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    static_assert(kColumns == 256);
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},"
        "{%128,%129,%130,%131}, %132, 1, 1, 1, 0;"
        : ESPALIER_32(d, 0), ESPALIER_32(d, 32), ESPALIER_32(d, 64), ESPALIER_32(d, 96)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}

#undef ESPALIER_8
#undef ESPALIER_32

// ---- Division of the work.

// Part of a tile: its quads from `begin` to `end`.
struct Segment {
  int tile, begin, end;
};

// A worker's segments: a worker is a cluster.
struct Schedule {
  static constexpr int kPartQuads = 12;

  int tiles, quads, workers, worker;
  int whole;    // tiles that are dealt out whole
  int tile;     // the next of them
  int at, end;  // in the run of quads of the others

  __device__ Schedule(int tiles, int quads, int workers, int worker)
      : tiles(tiles), quads(quads), workers(workers), worker(worker) {
    // To divide a tile takes about as long as kPartQuads quads.
    const int rounds = (tiles + workers - 1) / workers;
    whole = static_cast<long long>(rounds * workers - tiles) * quads <= kPartQuads * workers
                ? tiles
                : max_of(tiles / workers - 1, 0) * workers;
    tile = worker;
    at = run_start(worker);
    end = run_start(worker + 1);
  }
  __device__ static int max_of(int a, int b) { return a > b ? a : b; }
  __device__ long long run_quads() const { return static_cast<long long>(tiles - whole) * quads; }
  __device__ int run_start(int of) const { return static_cast<int>(run_quads() * of / workers); }
  // Whose part a quad of the run is.
  __device__ int worker_of(int quad) const {
    return static_cast<int>(((quad + 1LL) * workers - 1) / run_quads());
  }
  __device__ bool next(Segment& segment) {
    if (tile < whole) {
      segment = {tile, 0, quads};
      tile += workers;
      return true;
    }
    if (at >= end) return false;
    const int begin = at % quads;
    const int length = quads - begin < end - at ? quads - begin : end - at;
    segment = {whole + at / quads, begin, begin + length};
    at += length;
    return true;
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// ---- The product.

// How a number of rows is computed.
template <int kRows_, int kCluster_, int kBlocks_>
struct Shape {
  static constexpr int kRows = kRows_;        // of a tile
  static constexpr int kCluster = kCluster_;  // blocks of neighbouring outputs
  static constexpr int kBlocks = kBlocks_;    // of a multiprocessor
  static constexpr int kOperandBytes = kRows * kQuad * 2;
};

// Shared memory: the stages' operands, their weights, what is being finished, barriers.
template <typename S, int kDoubleBits>
struct Ring {
  static constexpr int kHalfBytes = kDoubleBits * 256;  // weights of 64 outputs
  static constexpr int kWeightBytes = 2 * kHalfBytes;
  static constexpr int kStageBytes = S::kOperandBytes + kWeightBytes;
  static constexpr int kFinishBytes = 2 * kFinishRows * kFinishPitch * 4;
  static constexpr int kMost = 227 * 1024 / S::kBlocks - 1024 * (S::kBlocks - 1);
  static constexpr int kStages = std::min(8, (kMost - kFinishBytes - 256) / kStageBytes);
  static constexpr int kWeights = kStages * S::kOperandBytes;
  static constexpr int kFinish = kWeights + kStages * kWeightBytes;
  static constexpr int kBarriers = kFinish + kFinishBytes;
  static constexpr int kFlag = kBarriers + kStages * 16;
  static constexpr int kBytes = kFlag + 16;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The stage that comes next, and how often the ring went round.
template <int kStages>
struct Place {
  int stage = 0;
  int round = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      round ^= 1;
    }
  }
};

// Where a block of a cluster is in its tile.
template <typename S>
struct TilePlace {
  int row_block, output_block;
  __device__ TilePlace(const Arguments& args, int tile, int rank)
      : row_block(tile % args.row_blocks),
        output_block(tile / args.row_blocks * S::kCluster + rank) {}
};

// Two threads bring the stages, each as soon as the ring has room: one the weights, which do not
// depend on the kernel before, and one the activations.
template <typename S, int kDoubleBits>
__device__ inline void fetch_weights(const Arguments& args, Schedule schedule, int rank,
                                     std::uint32_t memory) {
  using R = Ring<S, kDoubleBits>;
  const int last_block = args.padded_outputs / kGroup - 1;
  const std::size_t run_bytes = static_cast<std::size_t>(schedule.quads) * R::kHalfBytes;
  Place<R::kStages> place;
  Segment segment;
  while (schedule.next(segment)) {
    // Two runs of 64 outputs, each quad by quad. A cluster's surplus block takes some others.
    const TilePlace<S> at(args, segment.tile, rank);
    const auto* from = reinterpret_cast<const std::uint8_t*>(args.weights) +
                       min(at.output_block, last_block) * 2 * run_bytes +
                       static_cast<std::size_t>(segment.begin) * R::kHalfBytes;
    for (int quad = segment.begin; quad < segment.end; ++quad) {
      const std::uint32_t full = memory + R::kBarriers + place.stage * 16;
      const std::uint32_t to = memory + R::kWeights + place.stage * R::kWeightBytes;
      wait_for(full + 8, place.round ^ 1);
      announce(full, R::kWeightBytes);
      copy(to, from, R::kHalfBytes, full);
      copy(to + R::kHalfBytes, from + run_bytes, R::kHalfBytes, full);
      from += R::kHalfBytes;
      place.advance();
    }
  }
}
template <typename S, int kDoubleBits>
__device__ inline void fetch_activations(const Arguments& args, Schedule schedule, int rank,
                                         std::uint32_t memory) {
  using R = Ring<S, kDoubleBits>;
  wait_for_the_kernel_before();
  Place<R::kStages> place;
  Segment segment;
  while (schedule.next(segment)) {
    const TilePlace<S> at(args, segment.tile, rank);
    constexpr int kShare = S::kOperandBytes / S::kCluster;
    const auto* from = reinterpret_cast<const std::uint8_t*>(args.activations) + rank * kShare +
                       (static_cast<std::size_t>(at.row_block) * schedule.quads + segment.begin) *
                           S::kOperandBytes;
    for (int quad = segment.begin; quad < segment.end; ++quad) {
      const std::uint32_t full = memory + R::kBarriers + place.stage * 16;
      const std::uint32_t to = memory + place.stage * S::kOperandBytes + rank * kShare;
      wait_for(full + 8, place.round ^ 1);
      announce(full, S::kOperandBytes);
      if constexpr (S::kCluster == 1) {
        copy(to, from, kShare, full);
      } else {
        copy_to_both(to, from, kShare, full);
      }
      from += S::kOperandBytes;
      place.advance();
    }
  }
}

// Rotates a tile's products, scales them and writes them, kFinishRows rows at a time. The transform
// over bit 3 of an output is done where the products are, in lanes that hold outputs g and g + 8;
// then half a warp takes a row: lane l outputs 4 l to 4 l + 3, and those 64 further.
template <typename S>
__device__ inline void finish_tile(const Arguments& args, const float (&acc)[S::kRows / 2],
                                   const TilePlace<S>& at, float* shared) {
  constexpr int kRowsOfWarp = kFinishRows / kWarps;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int half_lane = lane % 16;
  const int output = at.output_block * kGroup + half_lane * 4;
  const int tile_row = at.row_block * S::kRows;
  float scale[8];
  float bias[8] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int of = output + i / 4 * 64 + i % 4;
    scale[i] = __half2float(args.svh[of]);
    if (args.bias != nullptr && of < args.outputs) bias[i] = args.bias[of];
  }
  // Lane l: of row 4 (warp + 8 (l / 4)) + l % 4, the warp's in the chunk l / 4.
  const int factor_row =
      tile_row + lane / kRowsOfWarp * kFinishRows + warp * kRowsOfWarp + lane % kRowsOfWarp;
  const float factors = factor_row < args.rows ? args.row_factor[factor_row] : 0;
#pragma unroll
  for (int chunk = 0; chunk < S::kRows / kFinishRows; ++chunk) {
    const int first_row = tile_row + chunk * kFinishRows;
    if (first_row >= args.rows) break;
    float* buffer = shared + chunk % 2 * kFinishRows * kFinishPitch;
    float* to = buffer + lane % 4 * 2 * kFinishPitch + warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < kFinishRows / 8; ++j) {
      const float* from = acc + (chunk * (kFinishRows / 8) + j) * 4;
      to[j * 8 * kFinishPitch] = from[0] + from[2];
      to[(j * 8 + 1) * kFinishPitch] = from[1] + from[3];
      to[j * 8 * kFinishPitch + 8] = from[0] - from[2];
      to[(j * 8 + 1) * kFinishPitch + 8] = from[1] - from[3];
    }
    synchronize_multipliers();
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; i += 2) {
      const int row_of_warp = i + lane / 16;
      const int row = warp * kRowsOfWarp + row_of_warp;
      float values[8];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const float4 four = *reinterpret_cast<const float4*>(buffer + row * kFinishPitch +
                                                             part * 64 + half_lane * 4);
        values[part * 4] = four.x, values[part * 4 + 1] = four.y;
        values[part * 4 + 2] = four.z, values[part * 4 + 3] = four.w;
      }
      add_and_subtract(values);
#pragma unroll
      for (int apart : {1, 4, 8}) add_and_subtract(values, lane, apart);
      const float factor = __shfl_sync(~0u, factors, chunk * kRowsOfWarp + row_of_warp);
#pragma unroll
      for (int v = 0; v < 8; ++v) values[v] = values[v] * factor * scale[v] + bias[v];
      if (first_row + row >= args.rows) continue;
      float* y = args.y + static_cast<std::size_t>(first_row + row) * args.outputs + output;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const float* from = values + part * 4;
        if (args.outputs % 4 == 0) {
          if (output + part * 64 < args.outputs) {
            __stcs(reinterpret_cast<float4*>(y + part * 64),
                   make_float4(from[0], from[1], from[2], from[3]));
          }
        } else {
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            if (output + part * 64 + v < args.outputs) y[part * 64 + v] = from[v];
          }
        }
      }
    }
  }
  synchronize_multipliers();
}

// Leaves a part of a tile for the block that completes it; if that is this one, adds up all parts
// in `acc`. Returns whether it is.
template <typename S>
__device__ inline bool add_parts(const Arguments& args, const Schedule& schedule,
                                 const Segment& segment, int rank, float (&acc)[S::kRows / 2],
                                 volatile int* flag) {
  constexpr int kFours = S::kRows / 8;
  const int tile = segment.tile - schedule.whole;
  const int tile_start = tile * schedule.quads;
  const auto part = [&](int worker) {
    // Of a worker's at most two parts of tiles, the one with which its run begins is the first.
    const int which = schedule.run_start(worker) >= tile_start ? 0 : 1;
    return args.partial +
           static_cast<std::size_t>((worker * S::kCluster + rank) * 2 + which) * kFours * kThreads +
           threadIdx.x;
  };
  float4* mine = part(schedule.worker);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    __stcg(mine + i * kThreads,
           make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
  }
  __threadfence();
  synchronize_multipliers();
  std::uint32_t* arrived = args.arrived + tile * S::kCluster + rank;
  if (threadIdx.x == 0) {
    const int quads = segment.end - segment.begin;
    *flag = static_cast<int>(atomicAdd(arrived, quads)) + quads == schedule.quads;
  }
  synchronize_multipliers();
  const bool complete = *flag != 0;
  synchronize_multipliers();
  if (!complete) return false;
  __threadfence();
  if (threadIdx.x == 0) *arrived = 0;
#pragma unroll
  for (float& value : acc) value = 0;
  const int last = schedule.worker_of(tile_start + schedule.quads - 1);
  constexpr int kAtOnce = kFours < 16 ? 16 / kFours : 1;
#pragma unroll(kAtOnce)
  for (int worker = schedule.worker_of(tile_start); worker <= last; ++worker) {
    const float4* from = part(worker);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float4 four = __ldcg(from + i * kThreads);
      acc[4 * i] += four.x, acc[4 * i + 1] += four.y;
      acc[4 * i + 2] += four.z, acc[4 * i + 3] += four.w;
    }
  }
  return true;
}

template <int kDoubleBits, typename S>
__device__ inline void multiply(const Arguments& args, Schedule schedule, int rank,
                                std::uint8_t* memory) {
  using R = Ring<S, kDoubleBits>;
  const int lane = threadIdx.x % 32;
  // The same in all lanes, which the compiler is told so.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const std::uint32_t base = shared_address(memory);
  const auto full = [&](int stage) { return base + R::kBarriers + stage * 16; };
  // One lane for its warp. (Racecheck of compute-sanitizer takes that for the reads of this lane
  // alone, and reports those of the 31 others.)
  const auto release = [&](int stage) {
    __syncwarp();  // all lanes' reads of the weights
    if (lane != 0) return;
    arrive(full(stage) + 8);
    if constexpr (S::kCluster == 2) arrive_at(full(stage) + 8, 1 - rank);
  };
  // A descriptor of the operand: 128-byte swizzle, 1,024 bytes from 8 rows to the next 8, where; in
  // 16 bytes.
  constexpr std::uint64_t kDescriptor =
      std::uint64_t{1} << 62 | std::uint64_t{1024 / 16} << 32 | std::uint64_t{1} << 16;
  const std::uint32_t* weights =
      reinterpret_cast<const std::uint32_t*>(memory + R::kWeights + warp / 2 * (R::kHalfBytes / 2));
  const int tile_of_two = warp % 2;

  Place<R::kStages> place;
  using Bits = LaneWeights<kDoubleBits>;
  const auto next_bits = [&] {
    wait_for(full(place.stage), place.round);
    Bits bits;
    bits.read(weights + place.stage * (R::kWeightBytes / 4), tile_of_two, lane);
    return bits;
  };
  Segment segment;
  while (schedule.next(segment)) {
    float acc[S::kRows / 2];
#pragma unroll
    for (float& value : acc) value = 0;
    Bits bits = next_bits();
    std::uint32_t a[4];
    bits.decode_eight(0, a);
    int before = -1;
    for (int quad = segment.begin; quad < segment.end; ++quad) {
      const int stage = place.stage;
      const std::uint64_t operand = kDescriptor | (base + stage * S::kOperandBytes) >> 4;
      place.advance();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        begin_wgmma();
        wgmma<S::kRows>(acc, a, operand + step * 2);
        end_wgmma();
        // Meanwhile what comes next.
        if (step == 3 && quad + 1 < segment.end) bits = next_bits();
        std::uint32_t next[4];
        bits.decode_eight((step + 1) % 4, next);
        wait_for_wgmma<1>();
        if (step == 0 && before >= 0) release(before);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = next[i];
      }
      before = stage;
    }
    wait_for_wgmma<0>();
    release(before);
    const TilePlace<S> at(args, segment.tile, rank);
    if (at.output_block * kGroup >= args.padded_outputs) continue;
    wait_for_the_kernel_before();
    const bool whole = segment.end - segment.begin == schedule.quads;
    if (whole || add_parts<S>(args, schedule, segment, rank, acc,
                              reinterpret_cast<int*>(memory + R::kFlag))) {
      finish_tile<S>(args, acc, at, reinterpret_cast<float*>(memory + R::kFinish));
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kDoubleBits, typename S>
__global__ void __launch_bounds__(kBlockThreads, S::kBlocks)
    exl3_wide_multiply(const Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using R = Ring<S, kDoubleBits>;
  extern __shared__ __align__(1024) std::uint8_t memory[];
  const int rank = blockIdx.x % S::kCluster;
  const std::uint32_t base = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < R::kStages; ++stage) {
      make_barrier(base + R::kBarriers + stage * 16, 2);
      make_barrier(base + R::kBarriers + stage * 16 + 8, kWarps * S::kCluster);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  let_the_next_kernel_start();
  if constexpr (S::kCluster == 1) {
    __syncthreads();
  } else {
    synchronize_cluster();
  }
  const auto schedule = [&] {
    const int output_blocks = args.padded_outputs / kGroup;
    return Schedule((output_blocks + S::kCluster - 1) / S::kCluster * args.row_blocks,
                    args.padded_inputs / kQuad, gridDim.x / S::kCluster, blockIdx.x / S::kCluster);
  };
  // Registers go from those that fetch to those that multiply.
  if (threadIdx.x < kThreads) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kBlocks == 1 ? 232 : 104));
    multiply<kDoubleBits, S>(args, schedule(), rank, memory);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kBlocks == 1 ? 40 : 24));
    if (threadIdx.x == kThreads) fetch_weights<S, kDoubleBits>(args, schedule(), rank, base);
    if (threadIdx.x == kThreads + 32) {
      fetch_activations<S, kDoubleBits>(args, schedule(), rank, base);
    }
  }
  // A block's shared memory must stay until the other needs it no more.
  if constexpr (S::kCluster > 1) {
    __syncwarp();
    synchronize_cluster();
  }
#endif
}

// ---- The host's side.

using Kernel = void (*)(Arguments);

struct Variant {
  Kernel kernel;
  int shared_bytes;
  int rows, cluster, blocks;
};

template <int kDoubleBits, typename S>
constexpr Variant kVariant = {exl3_wide_multiply<kDoubleBits, S>, Ring<S, kDoubleBits>::kBytes,
                              S::kRows, S::kCluster, S::kBlocks};

// For up to 32, 64, 128 and more rows.
template <int kDoubleBits>
constexpr Variant kVariants[] = {
    kVariant<kDoubleBits, Shape<32, 1, 2>>,
    kVariant<kDoubleBits, Shape<64, 1, 2>>,
    kVariant<kDoubleBits, Shape<128, 2, 1>>,
    kVariant<kDoubleBits, Shape<256, 2, 1>>,
};

// By twice the bits.
constexpr const Variant* kRates[] = {
    nullptr,       nullptr,      kVariants<2>,  kVariants<3>, kVariants<4>,  kVariants<5>,
    kVariants<6>,  kVariants<7>, kVariants<8>,  nullptr,      kVariants<10>, nullptr,
    kVariants<12>, nullptr,      kVariants<14>, nullptr,      kVariants<16>,
};

const Variant& variant_for(const Exl3Layer& layer, std::uint32_t rows) {
  return kRates[layer.double_bits][rows <= 32 ? 0 : rows <= 64 ? 1 : rows <= 128 ? 2 : 3];
}

std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

// The most blocks at once, each of which may leave two parts of tiles.
constexpr int kMostBlocks = 512;

// The parts of the workspace, after the counts, which exl3_mul1 may share.
constexpr std::size_t kCountBytes = kExl3CountBytes;
static_assert(kCountBytes >= 2 * kMostBlocks * sizeof(std::uint32_t));
struct Workspace {
  std::size_t row_factor, activations, end;
};
Workspace workspace_of(const Exl3Layer& layer, std::uint32_t rows, int blocks, int tile_rows) {
  Workspace at{};
  at.row_factor =
      kCountBytes + static_cast<std::size_t>(blocks) * 2 * tile_rows * kGroup * sizeof(float);
  at.activations = at.row_factor + round_up(rows * sizeof(float), 1024);
  at.end = at.activations + round_up(rows, tile_rows) * layer.padded_inputs * sizeof(__half);
  return at;
}
int most_blocks(const Limits& limits, const Variant& variant) {
  return std::min(limits.multiprocessors * variant.blocks, kMostBlocks) / variant.cluster *
         variant.cluster;
}

Status launch(Kernel kernel, int blocks, int threads, int shared_bytes, int cluster,
              cudaStream_t stream, const Arguments& args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  return check(cudaLaunchKernelEx(&config, kernel, args), "exl3_wide");
}

}  // namespace

Status check_exl3_wide(const Exl3Layer& layer) {
  ESPALIER_CHECK(check_exl3_mul1(layer));
  Limits limits;
  ESPALIER_CHECK(find_limits(limits));
  if (limits.major != 9) return work_error("exl3_wide: this GPU is not of compute capability 9");
  return {};
}

std::size_t exl3_wide_workspace(const Exl3Layer& layer, std::uint32_t rows) {
  Limits limits;
  if (!find_limits(limits) || !check_exl3_wide(layer)) return 0;
  const Variant& variant = variant_for(layer, rows);
  return workspace_of(layer, rows, most_blocks(limits, variant), variant.rows).end;
}

Status exl3_wide(const Exl3Layer& layer, const float* x, std::uint32_t rows, float* y,
                 void* workspace, cudaStream_t stream) {
  ESPALIER_CHECK(check_exl3_wide(layer));
  if (rows == 0 || rows > kExl3WideRows) {
    return work_error("exl3_wide: found {} rows, expected 1 to {}", rows, kExl3WideRows);
  }
  Limits limits;
  ESPALIER_CHECK(find_limits(limits));
  const Variant& variant = variant_for(layer, rows);
  const int blocks = most_blocks(limits, variant);
  const Workspace at = workspace_of(layer, rows, blocks, variant.rows);
  auto* base = static_cast<std::uint8_t*>(workspace);
  Arguments args{};
  args.weights = layer.weights;
  args.suh = reinterpret_cast<const __half*>(layer.suh);
  args.svh = reinterpret_cast<const __half*>(layer.svh);
  args.bias = layer.bias;
  args.x = x;
  args.y = y;
  args.arrived = reinterpret_cast<std::uint32_t*>(base);
  args.partial = reinterpret_cast<float4*>(base + kCountBytes);
  args.row_factor = reinterpret_cast<float*>(base + at.row_factor);
  args.activations = reinterpret_cast<uint4*>(base + at.activations);
  args.rows = static_cast<int>(rows);
  args.inputs = static_cast<int>(layer.inputs);
  args.outputs = static_cast<int>(layer.outputs);
  args.padded_inputs = static_cast<int>(layer.padded_inputs);
  args.padded_outputs = static_cast<int>(layer.padded_outputs);
  args.tile_rows = variant.rows;
  args.row_blocks = static_cast<int>((rows + variant.rows - 1) / variant.rows);
  const int output_blocks = args.padded_outputs / kGroup;
  const std::size_t quads =
      static_cast<std::size_t>((output_blocks + variant.cluster - 1) / variant.cluster) *
      args.row_blocks * (args.padded_inputs / kQuad);
  const int workers = static_cast<int>(std::min<std::size_t>(quads, blocks / variant.cluster));
  ESPALIER_CHECK(
      check(cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 variant.shared_bytes),
            "exl3_wide: asking for shared memory"));
  ESPALIER_CHECK(
      launch(exl3_wide_prepare, static_cast<int>(rows), kPrepareThreads, 0, 1, stream, args));
  return launch(variant.kernel, workers * variant.cluster, kBlockThreads, variant.shared_bytes,
                variant.cluster, stream, args);
}

}  // namespace espalier::gpu::cuda
