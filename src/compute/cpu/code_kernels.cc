// Coding activations, and their products with panels: see panel.h.
#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/code_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <cstring>

#include "compute/cpu/panel.h"
#include "compute/cpu/row_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

template <std::size_t kGroup, bool kMinimums, int kBits>
struct Shape {};

// Rows whose sums of a group are under way at once, in two registers each.
constexpr std::size_t kBatchRows = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// sums[r] = the products of a group's codes, four inputs to a vector, with row r's activations.
// Neighbouring instructions belong to different sums, so that none waits for the one before it; a
// single row's sums are taken in two halves for that.
template <int kBits, std::size_t kRows, std::size_t kQuads>
HWY_INLINE void dot_rows(const VU (&codes)[kQuads], const CodedGroup* x, std::size_t part,
                         VI (&sums)[kRows]) {
  constexpr std::size_t kHalves = kRows == 1 ? 2 : 1;
  const std::size_t at = part * kQuads * 4;
  VI low[kHalves][kRows];
  VI high[kHalves][kRows];
  ESPALIER_UNROLL
  for (std::size_t h = 0; h < kHalves; ++h) {
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      low[h][r] = h == 0 ? hn::Set(DI(), x[r].offsets[part]) : hn::Zero(DI());
      high[h][r] = hn::Zero(DI());
    }
  }
  ESPALIER_UNROLL
  for (std::size_t q = 0; q < kQuads; ++q) {
    const std::size_t h = q % kHalves;
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      high[h][r] = dot<kBits>(high[h][r], codes[q], x[r].high + at + 4 * q);
      low[h][r] = dot<kBits>(low[h][r], codes[q], x[r].low + at + 4 * q);
    }
  }
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) {
    const VI upper = kHalves == 2 ? hn::Add(high[0][r], high[kHalves - 1][r]) : high[0][r];
    const VI lower = kHalves == 2 ? hn::Add(low[0][r], low[kHalves - 1][r]) : low[0][r];
    sums[r] = hn::Add(lower, hn::ShiftLeft<7>(upper));
  }
}

// kRows rows of a tile of kTile with inputs [0, inputs) of the panel; x is the first row's first
// group there. More rows share each load of codes; the order of every row's sum is the same.
template <std::size_t kRows, std::size_t kTile, std::size_t kGroup, bool kMinimums, int kBits>
HWY_INLINE void multiply_rows(Shape<kGroup, kMinimums, kBits>, const Panel& panel,
                              const CodedGroup* x, std::size_t inputs, Ahead& ahead, float* sums) {
  const DF df;
  constexpr std::size_t kQuads = kGroup / 4;
  const auto* quads = reinterpret_cast<const std::uint32_t*>(panel.codes);

  VF total[kRows];
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) total[r] = hn::LoadU(df, sums + r * kLanes);
  for (std::size_t g = 0; g < inputs / kGroup; ++g) {
    if (g * kGroup % kCodedGroup == 0) ahead.ask();
    VU codes[kQuads];
    ESPALIER_UNROLL
    for (std::size_t q = 0; q < kQuads; ++q) {
      codes[q] = hn::Load(DU(), quads + (g * kQuads + q) * kLanes);
    }
    const VF scale = hn::Load(df, panel.scales + g * kLanes);
    constexpr std::size_t kParts = kCodedGroup / kGroup;  // groups of weights in one of x
    const std::size_t part = g % kParts;
    const CodedGroup* group = x + g / kParts * kTile;
    constexpr std::size_t kBatch = HWY_MIN(kRows, kBatchRows);
    ESPALIER_UNROLL
    for (std::size_t first = 0; first < kRows; first += kBatch) {
      VI dots[kBatch];
      dot_rows<kBits>(codes, group + first, part, dots);
      ESPALIER_UNROLL
      for (std::size_t b = 0; b < kBatch; ++b) {
        const CodedGroup& row = group[first + b];
        VF& sum = total[first + b];
        const VF factor = hn::Mul(scale, hn::Set(df, row.scale));
        sum = hn::MulAdd(hn::ConvertTo(df, dots[b]), factor, sum);
        if constexpr (kMinimums) {
          const VF minimum = hn::Load(df, panel.minimums + g * kLanes);
          sum = hn::MulAdd(minimum, hn::Set(df, row.sums[part]), sum);
        }
      }
    }
  }
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) hn::StoreU(total[r], df, sums + r * kLanes);
}

template <std::size_t kTile, typename Shape>
HWY_INLINE void multiply_tile(Shape shape, const Panel& panel, const CodedGroup* x,
                              std::size_t inputs, Ahead& ahead, float* sums) {
  // What the registers hold.
  constexpr std::size_t kRows = HWY_MIN(kTile, HWY_TARGET <= HWY_AVX3 ? 8 : 4);
  Ahead nothing;
  for (std::size_t r = 0; r < kTile; r += kRows) {
    multiply_rows<kRows, kTile>(shape, panel, x + r, inputs, r == 0 ? ahead : nothing,
                                sums + r * kLanes);
  }
}

template <std::size_t kGroup, bool kMinimums, int kBits>
HWY_NOINLINE void multiply_all(Shape<kGroup, kMinimums, kBits> shape, const Panel& panel,
                               const CodedRows& x, std::size_t first, std::size_t inputs,
                               Ahead& ahead, float* sums) {
  const std::size_t x_groups = x.inputs / kCodedGroup;
  const std::size_t first_group = first / kCodedGroup;
  Ahead nothing;
  for (std::size_t r = 0; r < x.rows;) {
    const std::size_t rows = tile_rows(x.rows, r);
    const CodedGroup* tile = x.groups + r * x_groups + first_group * rows;
    float* to = sums + r * kLanes;
    Ahead& asks = r == 0 ? ahead : nothing;
    if (rows == 8) {
      multiply_tile<8>(shape, panel, tile, inputs, asks, to);
    } else if (rows == 4) {
      multiply_tile<4>(shape, panel, tile, inputs, asks, to);
    } else if (rows == 2) {
      multiply_tile<2>(shape, panel, tile, inputs, asks, to);
    } else {
      multiply_tile<1>(shape, panel, tile, inputs, asks, to);
    }
    r += rows;
  }
}

void multiply(const CodeShape& shape, const Panel& panel, const CodedRows& x, std::size_t first,
              std::size_t inputs, Ahead& ahead, float* sums) {
  const auto with = [&](auto s) { multiply_all(s, panel, x, first, inputs, ahead, sums); };
  if (shape.group == 16) {
    return shape.minimums ? with(Shape<16, true, 7>()) : with(Shape<16, false, 7>());
  }
  if (shape.bits == 8) {
    return shape.minimums ? with(Shape<32, true, 8>()) : with(Shape<32, false, 8>());
  }
  return shape.minimums ? with(Shape<32, true, 7>()) : with(Shape<32, false, 7>());
}

// Codes the 32 activations at x.
HWY_INLINE void encode_group(const float* x, const CodeShape& shape, CodedGroup& coded) {
  const DF df;
  const DI di;
  const hn::Rebind<std::int8_t, DI> dbytes;
  constexpr float kSmallest = 0x1p-100f;
  VF largest = hn::Zero(df);
  for (std::size_t i = 0; i < kCodedGroup; i += kLanes) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(df, x + i)));
  }
  const float magnitude = hn::GetLane(hn::MaxOfLanes(df, largest));
  coded.scale = magnitude < kSmallest ? 0 : magnitude / kMostCode;
  const VF inverse = hn::Set(df, magnitude < kSmallest ? 0 : kMostCode / magnitude);
  for (std::size_t group = 0; group < kCodedGroup; group += shape.group) {
    VI sums = hn::Zero(di);
    for (std::size_t i = group; i < group + shape.group; i += kLanes) {
      const VI codes = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverse));
      sums = hn::Add(sums, codes);
      const VI high = hn::ShiftRight<7>(hn::Add(codes, hn::Set(di, 64)));
      const VI low = hn::Sub(codes, hn::ShiftLeft<7>(high));
      hn::StoreU(hn::DemoteTo(dbytes, high), dbytes, coded.high + i);
      hn::StoreU(hn::DemoteTo(dbytes, low), dbytes, coded.low + i);
    }
    const std::int32_t sum = hn::GetLane(hn::SumOfLanes(di, sums));
    coded.offsets[group / shape.group] = -shape.zero * sum;
    coded.sums[group / shape.group] = coded.scale * static_cast<float>(sum);
  }
}

void encode(const float* x, std::size_t begin, std::size_t end, const CodeShape& shape,
            const CodedRows& coded) {
  const std::size_t groups = coded.inputs / kCodedGroup;
  std::size_t tile = 0;  // the first row of r's tile
  for (std::size_t r = begin; r < end; ++r) {
    while (r >= tile + tile_rows(coded.rows, tile)) tile += tile_rows(coded.rows, tile);
    const std::size_t rows = tile_rows(coded.rows, tile);
    CodedGroup* to = coded.groups + tile * groups + (r - tile);
    for (std::size_t g = 0; g < groups; ++g) {
      encode_group(x + r * coded.inputs + g * kCodedGroup, shape, to[g * rows]);
    }
  }
}

constexpr CodeKernels kCodeKernels = {
    .target = HWY_TARGET, .lanes = kLanes, .multiply = multiply, .encode = encode};

const CodeKernels* get_code_kernels() { return &kCodeKernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_code_kernels);

const CodeKernels& code_kernels() { return *HWY_DYNAMIC_DISPATCH(get_code_kernels)(); }

const CodeKernel* find_code_kernel(const pack::Matrix& w) {
  if (w.cols % kCodedGroup != 0 || !w.input_group.empty()) return nullptr;
  const std::string_view name = w.format->name;
  for (const auto kernels : {legacy_code_kernels(), k_code_kernels(), grouped_code_kernels()}) {
    for (const CodeKernel& kernel : kernels) {
      const bool family = kernel.format.ends_with('-') || kernel.format.ends_with("-g");
      if (family ? name.starts_with(kernel.format) : name == kernel.format) return &kernel;
    }
  }
  return nullptr;
}

}  // namespace espalier::cpu
#endif
