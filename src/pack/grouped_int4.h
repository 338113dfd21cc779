// The 4-bit integer formats of Hugging Face directories: GPTQ, AWQ and compressed-tensors. In all
// three a weight is scale · (code − zero point), code 0 … 15, and the input features of a row that
// share a scale and a zero point form a group; they differ in the order of the nibbles. Eight codes
// or zero points lie in a little-endian 32-bit word, nibble 0 in its low bits.
//
// With rows = output features, cols = input features, groups = cols / group size:
//
//   | format  | Matrix::data            | nibble k of a word | Matrix::zeros      | zero point    |
//   | ------- | ----------------------- | ------------------ | ------------------ | ------------- |
//   | GPTQ v1 | qweight [cols/8, rows]  | input 8i + k       | [groups, rows/8]   | stored + 1 *  |
//   | GPTQ v2 | the same                | input 8i + k       | [groups, rows/8]   | stored        |
//   | AWQ     | qweight [cols, rows/8]  | output 8j + o(k)   | [groups, rows/8] † | stored        |
//   | CT sym  | packed  [rows, cols/8]  | input 8i + k       | none               | 8             |
//   | CT asym | the same                | input 8i + k       | [⌈rows/8⌉, groups] | stored        |
//
//   * The addition is one of 32-bit words, word + 0x11111111: a carry out of a nibble goes into the
//     next. † o = 0, 2, 4, 6, 1, 3, 5, 7, for zeros as for codes; nibble k of other zeros is output
//     8j + k.
//
// Matrix::scales is [groups, rows] for GPTQ and AWQ and [rows, groups] for compressed-tensors.
// Matrix::input_group, where not empty (act-order), gives the group of each input feature;
// otherwise input c is in group c / group size.
//
// Sources: gptqmodel (checkpoint formats gptq and gptq_v2), AutoAWQ (version gemm),
// compressed-tensors (pack-quantized); decoded weights equal theirs bit for bit.
#pragma once

#include "pack/matrix.h"

namespace espalier::pack {

enum class Int4Layout { kGptqV1, kGptqV2, kAwq, kCtSymmetric, kCtAsymmetric };

// The group size of formats that have one group a row.
inline constexpr std::uint64_t kWholeRow = 0;

// The format of that layout and group size (kWholeRow, 32, 64 or 128), or null.
[[nodiscard]] const Format* find_int4_format(Int4Layout layout, std::uint64_t group_size);

// Input features in a group of `matrix`, in formats with one group a row too.
[[nodiscard]] std::uint64_t int4_group_size(const Matrix& matrix);

// Scale and zero point of group `group` of a row.
struct Int4Group {
  float scale = 0;
  int zero = 0;
};
[[nodiscard]] Int4Group int4_group(const Matrix& matrix, std::uint64_t row, std::uint64_t group);

// A view of rows × cols values. `zeros` is empty for kCtSymmetric, `input_group` where features are
// in order. Errors: columns that do not fill whole groups and words, rows that do not fill words
// where the layout needs it, parts whose size is not the one that rows and columns ask for, groups
// out of range.
[[nodiscard]] Result<Matrix> int4_matrix(const Format& format, std::uint64_t rows,
                                         std::uint64_t cols, Bytes codes, Bytes scales,
                                         ScaleType scale_type, Bytes zeros, Bytes input_group);

// --- The formats table ---------------------------------------------------------------------------

template <Int4Layout kLayout>
void decode_int4_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out);

// bits_per_weight counts 16-bit scales; what one group a row adds depends on the row and is left
// out.
template <Int4Layout kLayout>
constexpr Format int4_format(std::string_view name, std::uint64_t group_size) {
  constexpr Family kFamily = kLayout == Int4Layout::kGptqV1 || kLayout == Int4Layout::kGptqV2
                                 ? Family::kGptq
                             : kLayout == Int4Layout::kAwq ? Family::kAwq
                                                           : Family::kCompressedTensors;
  constexpr double kGroupBits = kLayout == Int4Layout::kCtSymmetric ? 16 : 16 + 4;
  const std::uint32_t block = group_size == kWholeRow ? 8 : static_cast<std::uint32_t>(group_size);
  return {.name = name,
          .family = kFamily,
          .block_values = block,
          .block_bytes = block / 2,
          .bits_per_weight = 4 + (group_size == kWholeRow ? 0 : kGroupBits / block),
          .decode_rows = decode_int4_rows<kLayout>};
}

}  // namespace espalier::pack
