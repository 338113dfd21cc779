// Unpacking formats with codes, coding activations, and their products: see panel.h.
#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/code_kernels.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include "compute/cpu/code_formats-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

// Asks for the bytes of a block, `ahead` bytes further on in every row. Rows are as many streams as
// there are lanes, more than processors follow by themselves.
template <typename Block>
HWY_INLINE void prefetch(const RowLanes& rows, std::size_t at, std::size_t ahead) {
  constexpr std::size_t kLine = 64;
  for (std::size_t line = (at + kLine - 1) / kLine * kLine; line < at + sizeof(Block);
       line += kLine) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      hwy::Prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(rows.row[l]) +
                                                  line + ahead));
    }
  }
}

template <typename Codes>
void unpack(const pack::Matrix& w, std::size_t row, std::size_t first, std::size_t inputs,
            Panel& panel) {
  using Block = typename Codes::Block;
  const std::size_t row_bytes = w.cols / Block::kValues * sizeof(Block);
  const std::size_t first_byte = first / Block::kValues * sizeof(Block);
  const auto* data = reinterpret_cast<const std::uint8_t*>(w.data.data());
  RowLanes rows;
  for (std::size_t l = 0; l < kLanes; ++l) {
    const std::size_t r = HWY_MIN(row + l, w.rows - 1);
    rows.row[l] = data + r * row_bytes + first_byte;
    rows.offset[l] = static_cast<std::int32_t>((r - row) * row_bytes);
  }

  // What comes next: the next inputs of these rows, or the first inputs of the next rows.
  const std::size_t blocks = inputs / Block::kValues;
  const std::size_t ahead =
      first + inputs < w.cols ? blocks * sizeof(Block) : kLanes * row_bytes - first_byte;
  for (std::size_t b = 0; b < blocks; ++b) {
    prefetch<Block>(rows, b * sizeof(Block), ahead);
    const std::size_t groups = b * (Block::kValues / Codes::kGroup);
    Codes::unpack(rows, b * sizeof(Block),
                  {.to_codes = panel.codes + b * Block::kValues * kLanes,
                   .to_scales = panel.scales + groups * kLanes,
                   .to_minimums = panel.minimums + groups * kLanes});
  }
}

// `kRows` rows of x with the panel. More rows share each load of codes; the order of every row's
// sum is the same.
template <typename Codes, std::size_t kRows>
HWY_INLINE void multiply_rows(const Panel& panel, const CodedRows& x, std::size_t row,
                              std::size_t first, std::size_t inputs, float* sums) {
  const DF df;
  const DI di;
  const DU du;
  constexpr std::size_t kQuads = Codes::kGroup / 4;
  const std::int8_t* x_codes = x.codes + row * x.inputs + first;
  const float* x_scales = x.scales + (row * x.inputs + first) / kCodedGroup;
  const std::int32_t* x_offsets = x.offsets + (row * x.inputs + first) / Codes::kGroup;
  const float* x_sums = x.sums + (row * x.inputs + first) / Codes::kGroup;
  const std::size_t x_groups = x.inputs / Codes::kGroup;

  VF total[kRows];
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) total[r] = hn::LoadU(df, sums + (row + r) * kLanes);
  for (std::size_t g = 0; g < inputs / Codes::kGroup; ++g) {
    VU codes[kQuads];
    ESPALIER_UNROLL
    for (std::size_t q = 0; q < kQuads; ++q) {
      codes[q] = hn::Load(
          du, reinterpret_cast<const std::uint32_t*>(panel.codes) + (g * kQuads + q) * kLanes);
    }
    const VF scale = hn::Load(df, panel.scales + g * kLanes);
    ESPALIER_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      VI dot = hn::Set(di, x_offsets[r * x_groups + g]);
      ESPALIER_UNROLL
      for (std::size_t q = 0; q < kQuads; ++q) {
        std::int32_t four;
        std::memcpy(&four, x_codes + r * x.inputs + g * Codes::kGroup + q * 4, 4);
        if constexpr (Codes::kCodeBits == 8) {
          dot = dot8(dot, codes[q], hn::Set(di, four));
        } else {
          dot = dot7(dot, codes[q], hn::Set(di, four));
        }
      }
      const float x_scale = x_scales[r * x.inputs / kCodedGroup + g * Codes::kGroup / kCodedGroup];
      total[r] = hn::MulAdd(hn::ConvertTo(df, dot), hn::Mul(scale, hn::Set(df, x_scale)), total[r]);
      if constexpr (Codes::kMinimums) {
        const VF minimum = hn::Load(df, panel.minimums + g * kLanes);
        total[r] = hn::MulAdd(minimum, hn::Set(df, x_sums[r * x_groups + g]), total[r]);
      }
    }
  }
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) hn::StoreU(total[r], df, sums + (row + r) * kLanes);
}

template <typename Codes>
void multiply(const Panel& panel, const CodedRows& x, std::size_t first, std::size_t inputs,
              float* sums) {
  constexpr std::size_t kMostRows = HWY_TARGET <= HWY_AVX3 ? 8 : 4;  // what the registers hold
  std::size_t row = 0;
  for (; row + kMostRows <= x.rows; row += kMostRows) {
    multiply_rows<Codes, kMostRows>(panel, x, row, first, inputs, sums);
  }
  if (kMostRows > 4 && row + 4 <= x.rows) {
    multiply_rows<Codes, 4>(panel, x, row, first, inputs, sums);
    row += 4;
  }
  if (row + 2 <= x.rows) {
    multiply_rows<Codes, 2>(panel, x, row, first, inputs, sums);
    row += 2;
  }
  if (row < x.rows) multiply_rows<Codes, 1>(panel, x, row, first, inputs, sums);
}

template <typename Codes>
constexpr CodeKernel kernel(std::string_view format) {
  static_assert(kPanelInputs % Codes::Block::kValues == 0 && kCodedGroup % Codes::kGroup == 0);
  return {format, Codes::kGroup, Codes::kZero, unpack<Codes>, multiply<Codes>};
}

constexpr CodeKernel kKernels[] = {
    kernel<CodesQ4_0>("Q4_0"),
    kernel<CodesQ4_1>("Q4_1"),
    kernel<CodesQ8_0>("Q8_0"),
    kernel<CodesQ6_K>("Q6_K"),
};

const CodeKernel* find(std::string_view format) {
  for (const CodeKernel& kernel : kKernels) {
    if (kernel.format == format) return &kernel;
  }
  return nullptr;
}

// Codes the group that begins at element `at` of `coded`, and leaves in x what the codes miss.
HWY_INLINE void encode_group(float* x, std::size_t at, const CodeKernel& kernel,
                             const CodedRows& coded) {
  const DF df;
  const DI di;
  const hn::Rebind<std::int8_t, DI> dbytes;
  constexpr float kSmallest = 0x1p-100f;
  VF largest = hn::Zero(df);
  for (std::size_t i = 0; i < kCodedGroup; i += kLanes) {
    largest = hn::Max(largest, hn::Abs(hn::Load(df, x + i)));
  }
  const float magnitude = hn::GetLane(hn::MaxOfLanes(df, largest));
  const float scale = magnitude < kSmallest ? 0 : magnitude / 127;
  const VF inverse = hn::Set(df, magnitude < kSmallest ? 0 : 127 / magnitude);
  coded.scales[at / kCodedGroup] = scale;
  for (std::size_t group = 0; group < kCodedGroup; group += kernel.group) {
    VI sums = hn::Zero(di);
    for (std::size_t i = group; i < group + kernel.group; i += kLanes) {
      const VF values = hn::Load(df, x + i);
      const VI codes = hn::NearestInt(hn::Mul(values, inverse));
      hn::StoreU(hn::DemoteTo(dbytes, codes), dbytes, coded.codes + at + i);
      hn::Store(hn::NegMulAdd(hn::ConvertTo(df, codes), hn::Set(df, scale), values), df, x + i);
      sums = hn::Add(sums, codes);
    }
    const std::int32_t sum = hn::GetLane(hn::SumOfLanes(di, sums));
    coded.offsets[(at + group) / kernel.group] = -kernel.zero * sum;
    coded.sums[(at + group) / kernel.group] = scale * static_cast<float>(sum);
  }
}

void encode(const float* x, std::size_t begin, std::size_t end, std::size_t planes,
            const CodeKernel& kernel, const CodedRows& coded) {
  HWY_ALIGN float group[kCodedGroup];
  for (std::size_t r = begin; r < end; ++r) {
    for (std::size_t i = 0; i < coded.inputs; i += kCodedGroup) {
      std::memcpy(group, x + r * coded.inputs + i, sizeof(group));
      for (std::size_t p = 0; p < planes; ++p) {
        encode_group(group, (r * planes + p) * coded.inputs + i, kernel, coded);
      }
    }
  }
}

constexpr CodeKernels kCodeKernels = {
    .target = HWY_TARGET, .lanes = kLanes, .find = find, .encode = encode};

const CodeKernels* get_code_kernels() { return &kCodeKernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_code_kernels);

const CodeKernels& code_kernels() { return *HWY_DYNAMIC_DISPATCH(get_code_kernels)(); }

}  // namespace espalier::cpu
#endif
