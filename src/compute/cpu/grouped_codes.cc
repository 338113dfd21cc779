// Panels of the formats of Hugging Face directories: MLX's affine codes, and the 4-bit integers of
// GPTQ, AWQ and compressed-tensors. Their scales lie apart from the codes.
#include "compute/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/cpu/grouped_codes.cc"
#include "hwy/foreach_target.h"  // before all that is compiled for each target

#include <algorithm>

#include "compute/cpu/unpack-inl.h"
#include "pack/grouped_int4.h"
#include "pack/scales.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {
namespace {

constexpr std::size_t kStep = 32;  // inputs that are unpacked at a time
constexpr std::size_t kStepQuads = kStep / 4;

// The numbers of that type at elements index(lane).
template <typename Index>
HWY_INLINE VF load_scales(pack::ScaleType type, Bytes scales, const Index& index) {
  HWY_ALIGN std::uint32_t words[kLanes] = {};
  const std::size_t size = pack::scale_size(type);
  for (std::size_t l = 0; l < kLanes; ++l) {
    std::memcpy(words + l, scales.data() + index(l) * size, size == 4 ? 4 : 2);
  }
  const VU bits = hn::Load(DU(), words);
  if (type == pack::ScaleType::kF16) return half_words_to_float(bits);
  if (type == pack::ScaleType::kBF16) return hn::BitCast(DF(), hn::ShiftLeft<16>(bits));
  return hn::BitCast(DF(), bits);
}

// Four consecutive codes of kBits bits in the lowest bits of every word, as bytes.
template <std::size_t kBits>
HWY_INLINE VU spread(VU words) {
  if constexpr (kBits == 8) return words;
  constexpr std::uint32_t kTwo = (1u << 2 * kBits) - 1;
  constexpr std::uint32_t kOne = (1u << kBits) - 1;
  const VU pairs = hn::Or(hn::And(words, words_of(kTwo)),
                          hn::And(hn::ShiftLeft<16 - 2 * kBits>(words), words_of(kTwo << 16)));
  return hn::Or(hn::And(pairs, words_of(kOne | kOne << 16)),
                hn::And(hn::ShiftLeft<8 - kBits>(pairs), words_of((kOne | kOne << 16) << 8)));
}

// A row's bit stream at byte `at`: 32 codes of kBits bits, lowest bits first.
template <std::size_t kBits>
HWY_INLINE void write_stream(const RowLanes& rows, std::size_t at, const BlockWriter& to) {
  VU words[kBits + 1];
  words[kBits] = hn::Zero(DU());
  if constexpr (kBits >= 4) {
    const FourWords four = load_four_words(rows, at);
    std::copy_n(four.v, 4, words);
  }
  if constexpr (kBits == 8) {
    const FourWords four = load_four_words(rows, at + 16);
    std::copy_n(four.v, 4, words + 4);
  }
  for (std::size_t w = kBits / 4 * 4; w < kBits; ++w) words[w] = load_word(rows, at + 4 * w);
  unrolled(std::make_index_sequence<kStepQuads>(), [&](auto quad) HWY_ATTR {
    constexpr std::size_t kWord = 4 * kBits * quad / 32;
    constexpr std::size_t kShift = 4 * kBits * quad % 32;
    VU bits = hn::ShiftRight<kShift>(words[kWord]);
    if constexpr (kShift + 4 * kBits > 32) {
      bits = hn::Or(bits, hn::ShiftLeft<32 - kShift>(words[kWord + 1]));
    }
    if constexpr (kBits < 8) bits = hn::And(bits, words_of((1u << 4 * kBits % 32) - 1));
    to.codes(quad, spread<kBits>(bits));
  });
}

// The lanes' rows, with lanes past the last row repeating it.
struct LaneRows {
  std::size_t row[kLanes];

  LaneRows(const pack::Matrix& w, std::size_t first) {
    for (std::size_t l = 0; l < kLanes; ++l) row[l] = HWY_MIN(first + l, w.rows - 1);
  }

  // Where rows of `row_bytes` begin.
  [[nodiscard]] RowLanes at(Bytes data, std::size_t row_bytes) const {
    RowLanes rows;
    for (std::size_t l = 0; l < kLanes; ++l) {
      rows.row[l] = reinterpret_cast<const std::uint8_t*>(data.data()) + row[l] * row_bytes;
      rows.offset[l] = static_cast<std::int32_t>((row[l] - row[0]) * row_bytes);
    }
    return rows;
  }
};

// Fills a panel step by step: write_step(input, to) writes the codes from `input` on;
// write_scales(group, to) the scale, and the minimum if there is one, of a group of `group_size`
// inputs.
template <typename WriteStep, typename WriteScales>
HWY_INLINE void unpack_steps(std::size_t first, std::size_t inputs, std::size_t group_size,
                             Panel& panel, const WriteStep& write_step,
                             const WriteScales& write_scales) {
  for (std::size_t done = 0; done < inputs; done += kStep) {
    const std::size_t step = done / kStep;
    const BlockWriter to = {.to_codes = panel.codes + done * kLanes,
                            .to_scales = panel.scales + step * kLanes,
                            .to_minimums = panel.minimums + step * kLanes};
    const std::size_t input = first + done;
    write_step(input, to);
    if (done == 0 || input % group_size == 0) {
      write_scales(input / group_size, to);
    } else {
      to.scale(0, hn::Load(DF(), to.to_scales - kLanes));
      to.minimum(0, hn::Load(DF(), to.to_minimums - kLanes));
    }
  }
}

template <std::size_t kBits>
void unpack_mlx(const pack::Matrix& w, std::size_t row, std::size_t first, std::size_t inputs,
                Panel& panel) {
  const LaneRows lanes(w, row);
  const RowLanes codes = lanes.at(w.data, w.cols * kBits / 8);
  const std::size_t group_size = w.format->block_values;
  const std::size_t groups = w.cols / group_size;
  unpack_steps(
      first, inputs, group_size, panel,
      [&](std::size_t input, const BlockWriter& to)
          HWY_ATTR { write_stream<kBits>(codes, input * kBits / 8, to); },
      [&](std::size_t group, const BlockWriter& to) HWY_ATTR {
        const auto index = [&](std::size_t l) { return lanes.row[l] * groups + group; };
        to.scale(0, load_scales(w.scale_type, w.scales, index));
        to.minimum(0, load_scales(w.scale_type, w.zeros, index));
      });
}

// Words with the 4-bit zero points of the lanes' rows.
HWY_INLINE VF zeros_to_float(const std::uint32_t (&zeros)[kLanes]) {
  return hn::ConvertTo(DF(), hn::BitCast(DI(), hn::Load(DU(), zeros)));
}

HWY_INLINE std::uint32_t word_at(Bytes words, std::size_t index) {
  return load<std::uint32_t>(words.data() + index * sizeof(std::uint32_t));
}

// compressed-tensors: rows of 4-bit codes; scales and zero points in [rows, groups].
template <pack::Int4Layout kLayout>
void unpack_ct(const pack::Matrix& w, std::size_t row, std::size_t first, std::size_t inputs,
               Panel& panel) {
  const LaneRows lanes(w, row);
  const RowLanes codes = lanes.at(w.data, w.cols / 2);
  const std::size_t group_size = pack::int4_group_size(w);
  const std::size_t groups = w.cols / group_size;
  unpack_steps(
      first, inputs, group_size, panel,
      [&](std::size_t input, const BlockWriter& to)
          HWY_ATTR { write_stream<4>(codes, input / 2, to); },
      [&](std::size_t group, const BlockWriter& to) HWY_ATTR {
        const VF scale = load_scales(w.scale_type, w.scales,
                                     [&](std::size_t l) { return lanes.row[l] * groups + group; });
        to.scale(0, scale);
        if constexpr (kLayout == pack::Int4Layout::kCtAsymmetric) {
          HWY_ALIGN std::uint32_t zeros[kLanes];
          for (std::size_t l = 0; l < kLanes; ++l) {
            const std::size_t r = lanes.row[l];
            zeros[l] = word_at(w.zeros, r / 8 * groups + group) >> (4 * (r % 8)) & 15;
          }
          to.minimum(0, hn::Neg(hn::Mul(scale, zeros_to_float(zeros))));
        }
      });
}

// Which nibble of an AWQ word holds output 8j + i.
constexpr std::uint32_t kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// GPTQ and AWQ: outputs side by side; scales and zero points in [groups, rows].
template <pack::Int4Layout kLayout>
HWY_INLINE void write_by_group(const pack::Matrix& w, const LaneRows& lanes, std::size_t group,
                               const BlockWriter& to) {
  const VF scale = load_scales(w.scale_type, w.scales,
                               [&](std::size_t l) { return group * w.rows + lanes.row[l]; });
  HWY_ALIGN std::uint32_t zeros[kLanes];
  for (std::size_t l = 0; l < kLanes; ++l) {
    const std::size_t r = lanes.row[l];
    // Version 1 stores one less, and adds it to whole words.
    const std::uint32_t word = word_at(w.zeros, group * (w.rows / 8) + r / 8) +
                               (kLayout == pack::Int4Layout::kGptqV1 ? 0x11111111u : 0);
    const std::size_t nibble = kLayout == pack::Int4Layout::kAwq ? kAwqNibble[r % 8] : r % 8;
    zeros[l] = word >> (4 * nibble) & 15;
  }
  to.scale(0, scale);
  to.minimum(0, hn::Neg(hn::Mul(scale, zeros_to_float(zeros))));
}

template <pack::Int4Layout kLayout>
void unpack_gptq(const pack::Matrix& w, std::size_t row, std::size_t first, std::size_t inputs,
                 Panel& panel) {
  const LaneRows lanes(w, row);
  unpack_steps(
      first, inputs, pack::int4_group_size(w), panel,
      [&](std::size_t input, const BlockWriter& to) HWY_ATTR {
        for (std::size_t i = 0; i < kStep / 8; ++i) {
          HWY_ALIGN std::uint32_t words[kLanes];
          const std::size_t at = (input / 8 + i) * w.rows;
          for (std::size_t l = 0; l < kLanes; ++l) words[l] = word_at(w.data, at + lanes.row[l]);
          const VU eight = hn::Load(DU(), words);
          to.codes(2 * i, spread<4>(hn::And(eight, words_of(0xffff))));
          to.codes(2 * i + 1, spread<4>(hn::ShiftRight<16>(eight)));
        }
      },
      [&](std::size_t group, const BlockWriter& to)
          HWY_ATTR { write_by_group<kLayout>(w, lanes, group, to); });
}

void unpack_awq(const pack::Matrix& w, std::size_t row, std::size_t first, std::size_t inputs,
                Panel& panel) {
  const LaneRows lanes(w, row);
  HWY_ALIGN std::uint32_t shifts[kLanes];
  for (std::size_t l = 0; l < kLanes; ++l) shifts[l] = 4 * kAwqNibble[lanes.row[l] % 8];
  const VU shift = hn::Load(DU(), shifts);
  const auto codes_of = [&](std::size_t input) HWY_ATTR {
    HWY_ALIGN std::uint32_t words[kLanes];
    for (std::size_t l = 0; l < kLanes; ++l) {
      words[l] = word_at(w.data, input * (w.rows / 8) + lanes.row[l] / 8);
    }
    return hn::And(hn::Shr(hn::Load(DU(), words), shift), words_of(15));
  };
  unpack_steps(
      first, inputs, pack::int4_group_size(w), panel,
      [&](std::size_t input, const BlockWriter& to) HWY_ATTR {
        for (std::size_t quad = 0; quad < kStepQuads; ++quad) {
          const std::size_t i = input + 4 * quad;
          const VU low = hn::Or(codes_of(i), hn::ShiftLeft<8>(codes_of(i + 1)));
          const VU high = hn::Or(codes_of(i + 2), hn::ShiftLeft<8>(codes_of(i + 3)));
          to.codes(quad, hn::Or(low, hn::ShiftLeft<16>(high)));
        }
      },
      [&](std::size_t group, const BlockWriter& to)
          HWY_ATTR { write_by_group<pack::Int4Layout::kAwq>(w, lanes, group, to); });
}

using pack::Int4Layout;

constexpr CodeShape kAffine = {.minimums = true};
constexpr CodeShape kAffine8 = {.minimums = true, .bits = 8};

// Group sizes: all.
constexpr CodeKernel kKernels[] = {
    {"MLX-1-g", kStep, kAffine, unpack_mlx<1>},
    {"MLX-2-g", kStep, kAffine, unpack_mlx<2>},
    {"MLX-3-g", kStep, kAffine, unpack_mlx<3>},
    {"MLX-4-g", kStep, kAffine, unpack_mlx<4>},
    {"MLX-5-g", kStep, kAffine, unpack_mlx<5>},
    {"MLX-6-g", kStep, kAffine, unpack_mlx<6>},
    {"MLX-8-g", kStep, kAffine8, unpack_mlx<8>},
    {"GPTQ-V1-4-", kStep, kAffine, unpack_gptq<Int4Layout::kGptqV1>},
    {"GPTQ-V2-4-", kStep, kAffine, unpack_gptq<Int4Layout::kGptqV2>},
    {"AWQ-4-", kStep, kAffine, unpack_awq},
    {"CT-SYM-4-", kStep, {.zero = 8}, unpack_ct<Int4Layout::kCtSymmetric>},
    {"CT-ASYM-4-", kStep, kAffine, unpack_ct<Int4Layout::kCtAsymmetric>},
};

std::span<const CodeKernel> get_grouped_code_kernels() { return kKernels; }

}  // namespace
}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace espalier::cpu {

HWY_EXPORT(get_grouped_code_kernels);

std::span<const CodeKernel> grouped_code_kernels() {
  return HWY_DYNAMIC_DISPATCH(get_grouped_code_kernels)();
}

}  // namespace espalier::cpu
#endif
