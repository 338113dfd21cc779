// Coding activations, and their products with panels: see panel.h.
#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/code_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include "compute/cpu/group_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

// kRows rows of a tile of kTile with inputs [0, inputs) of the panel; x is the first row's first
// group there. More rows share each load of codes; the order of every row's sum is the same.
template <typename Shape, std::size_t kRows, std::size_t kTile>
HWY_INLINE void multiply_rows(const Panel& panel, const CodedGroup* x, std::size_t inputs,
                              float* sums) {
  const DF df;
  const auto* quads = reinterpret_cast<const std::uint32_t*>(panel.codes);
  VF total[kRows];
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) total[r] = hn::LoadU(df, sums + r * kLanes);
  for (std::size_t g = 0; g < inputs / Shape::kGroup; ++g) {
    VU codes[Shape::kQuads];
    ESPALIER_UNROLL
    for (std::size_t q = 0; q < Shape::kQuads; ++q) {
      codes[q] = hn::Load(DU(), quads + (g * Shape::kQuads + q) * kLanes);
    }
    VF minimum = hn::Zero(df);
    if constexpr (Shape::kMinimums) minimum = hn::Load(df, panel.minimums + g * kLanes);
    add_group<Shape>(codes, hn::Load(df, panel.scales + g * kLanes), minimum,
                     x + g / Shape::kParts * kTile, g % Shape::kParts, total);
  }
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) hn::StoreU(total[r], df, sums + r * kLanes);
}

template <typename Shape, std::size_t kTile>
HWY_INLINE void multiply_tile(const Panel& panel, const CodedGroup* x, std::size_t inputs,
                              float* sums) {
  // What the registers hold.
  constexpr std::size_t kRows = HWY_MIN(kTile, HWY_TARGET <= HWY_AVX3 ? 8 : 4);
  for (std::size_t r = 0; r < kTile; r += kRows) {
    multiply_rows<Shape, kRows, kTile>(panel, x + r, inputs, sums + r * kLanes);
  }
}

template <typename Shape>
HWY_NOINLINE void multiply_all(const Panel& panel, const CodedRows& x, std::size_t first,
                               std::size_t inputs, float* sums) {
  const std::size_t x_groups = x.inputs / kCodedGroup;
  const std::size_t first_group = first / kCodedGroup;
  for (std::size_t r = 0; r < x.rows;) {
    const std::size_t rows = tile_rows(x.rows, r);
    const CodedGroup* tile = x.groups + r * x_groups + first_group * rows;
    float* to = sums + r * kLanes;
    if (rows == 8) {
      multiply_tile<Shape, 8>(panel, tile, inputs, to);
    } else if (rows == 4) {
      multiply_tile<Shape, 4>(panel, tile, inputs, to);
    } else if (rows == 2) {
      multiply_tile<Shape, 2>(panel, tile, inputs, to);
    } else {
      multiply_tile<Shape, 1>(panel, tile, inputs, to);
    }
    r += rows;
  }
}

void multiply(const CodeShape& shape, const Panel& panel, const CodedRows& x, std::size_t first,
              std::size_t inputs, float* sums) {
  const auto with = [&](auto s) { multiply_all<decltype(s)>(panel, x, first, inputs, sums); };
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

void encode(const float* x, std::size_t inputs, const CodeShape& shape, const CodedRow& coded) {
  for (std::size_t g = 0; g < inputs / kCodedGroup; ++g) {
    encode_group(x + g * kCodedGroup, shape, coded.groups[g * coded.stride]);
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
  for (const auto kernels :
       {legacy_code_kernels(), k_code_kernels(), grouped_code_kernels(), grid_code_kernels()}) {
    for (const CodeKernel& kernel : kernels) {
      const bool family = kernel.format.ends_with('-') || kernel.format.ends_with("-g");
      if (family ? name.starts_with(kernel.format) : name == kernel.format) return &kernel;
    }
  }
  return nullptr;
}

}  // namespace espalier::cpu
#endif
