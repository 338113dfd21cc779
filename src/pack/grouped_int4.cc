#include "pack/grouped_int4.h"

#include <array>

#include "pack/scales.h"

namespace espalier::pack {
namespace {

constexpr std::uint64_t kWordValues = 8;
constexpr std::uint64_t kWordBytes = 4;

std::uint32_t load_word(Bytes words, std::uint64_t index) {
  return load<std::uint32_t>(words.data() + index * kWordBytes);
}

int nibble(std::uint32_t word, std::uint64_t index) {
  return static_cast<int>(word >> (4 * index) & 15);
}

// Which nibble of an AWQ word holds output 8j + i.
constexpr std::uint64_t kAwqNibble[kWordValues] = {0, 4, 1, 5, 2, 6, 3, 7};

std::uint64_t group_count(const Matrix& matrix) {
  return matrix.scales.size() / scale_size(matrix.scale_type) / matrix.rows;
}

// The code of weight (row, col).
template <Int4Layout kLayout>
int code_at(const Matrix& m, std::uint64_t row, std::uint64_t col) {
  switch (kLayout) {
    case Int4Layout::kGptqV1:
    case Int4Layout::kGptqV2:
      return nibble(load_word(m.data, col / kWordValues * m.rows + row), col % kWordValues);
    case Int4Layout::kAwq:
      return nibble(load_word(m.data, col * (m.rows / kWordValues) + row / kWordValues),
                    kAwqNibble[row % kWordValues]);
    case Int4Layout::kCtSymmetric:
    case Int4Layout::kCtAsymmetric:
      return nibble(load_word(m.data, row * (m.cols / kWordValues) + col / kWordValues),
                    col % kWordValues);
  }
}

// The zero point of one of a row's `groups` groups.
template <Int4Layout kLayout>
int zero_at(const Matrix& m, std::uint64_t row, std::uint64_t group, std::uint64_t groups) {
  const std::uint64_t by_group = group * (m.rows / kWordValues) + row / kWordValues;
  switch (kLayout) {
    case Int4Layout::kGptqV1:
      return nibble(load_word(m.zeros, by_group) + 0x11111111u, row % kWordValues);
    case Int4Layout::kGptqV2:
      return nibble(load_word(m.zeros, by_group), row % kWordValues);
    case Int4Layout::kAwq:
      return nibble(load_word(m.zeros, by_group), kAwqNibble[row % kWordValues]);
    case Int4Layout::kCtSymmetric:
      return 8;
    case Int4Layout::kCtAsymmetric:
      return nibble(load_word(m.zeros, row / kWordValues * groups + group), row % kWordValues);
  }
}

constexpr bool is_compressed_tensors(Int4Layout layout) {
  return layout == Int4Layout::kCtSymmetric || layout == Int4Layout::kCtAsymmetric;
}

// Scale and zero point of one of a row's `groups` groups.
template <Int4Layout kLayout>
Int4Group group_at(const Matrix& m, std::uint64_t row, std::uint64_t group, std::uint64_t groups) {
  const std::uint64_t index =
      is_compressed_tensors(kLayout) ? row * groups + group : group * m.rows + row;
  return {load_scale(m.scale_type, m.scales.data() + index * scale_size(m.scale_type)),
          zero_at<kLayout>(m, row, group, groups)};
}

// In the order of Int4Layout.
constexpr auto kGroupReaders =
    std::to_array<Int4Group (*)(const Matrix&, std::uint64_t, std::uint64_t, std::uint64_t)>({
        group_at<Int4Layout::kGptqV1>,
        group_at<Int4Layout::kGptqV2>,
        group_at<Int4Layout::kAwq>,
        group_at<Int4Layout::kCtSymmetric>,
        group_at<Int4Layout::kCtAsymmetric>,
    });

// In the order of Int4Layout.
constexpr auto kDecoders = std::to_array<decltype(Format::decode_rows)>({
    decode_int4_rows<Int4Layout::kGptqV1>,
    decode_int4_rows<Int4Layout::kGptqV2>,
    decode_int4_rows<Int4Layout::kAwq>,
    decode_int4_rows<Int4Layout::kCtSymmetric>,
    decode_int4_rows<Int4Layout::kCtAsymmetric>,
});

Int4Layout layout_of(const Format& format) {
  std::size_t layout = 0;
  while (kDecoders[layout] != format.decode_rows) ++layout;
  return static_cast<Int4Layout>(layout);
}

Status check_part(const Format& format, std::string_view part, Bytes found,
                  std::uint64_t expected) {
  if (found.size() == expected) return {};
  return input_error("{}: {} take {} bytes, expected {}", format.name, part, found.size(),
                     expected);
}

}  // namespace

template <Int4Layout kLayout>
void decode_int4_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out) {
  const std::uint64_t groups = group_count(matrix);
  const std::uint64_t group_size = matrix.cols / groups;
  for (std::uint64_t row = first; row < first + count; ++row) {
    for (std::uint64_t col = 0; col < matrix.cols; ++col) {
      const std::uint64_t group =
          matrix.input_group.empty()
              ? col / group_size
              : load<std::uint32_t>(matrix.input_group.data() + col * sizeof(std::uint32_t));
      const Int4Group meaning = group_at<kLayout>(matrix, row, group, groups);
      const int level = code_at<kLayout>(matrix, row, col) - meaning.zero;
      *out++ = meaning.scale * static_cast<float>(level);
    }
  }
}

template void decode_int4_rows<Int4Layout::kGptqV1>(const Matrix&, std::uint64_t, std::uint64_t,
                                                    float*);
template void decode_int4_rows<Int4Layout::kGptqV2>(const Matrix&, std::uint64_t, std::uint64_t,
                                                    float*);
template void decode_int4_rows<Int4Layout::kAwq>(const Matrix&, std::uint64_t, std::uint64_t,
                                                 float*);
template void decode_int4_rows<Int4Layout::kCtSymmetric>(const Matrix&, std::uint64_t,
                                                         std::uint64_t, float*);
template void decode_int4_rows<Int4Layout::kCtAsymmetric>(const Matrix&, std::uint64_t,
                                                          std::uint64_t, float*);

const Format* find_int4_format(Int4Layout layout, std::uint64_t group_size) {
  const std::uint64_t block = group_size == kWholeRow ? kWordValues : group_size;
  for (const Format& format : formats()) {
    if (format.decode_rows == kDecoders[static_cast<std::size_t>(layout)] &&
        format.block_values == block) {
      return &format;
    }
  }
  return nullptr;
}

Int4Group int4_group(const Matrix& matrix, std::uint64_t row, std::uint64_t group) {
  const auto layout = static_cast<std::size_t>(layout_of(*matrix.format));
  return kGroupReaders[layout](matrix, row, group, group_count(matrix));
}

std::uint64_t int4_group_size(const Matrix& matrix) { return matrix.cols / group_count(matrix); }

Result<Matrix> int4_matrix(const Format& format, std::uint64_t rows, std::uint64_t cols,
                           Bytes codes, Bytes scales, ScaleType scale_type, Bytes zeros,
                           Bytes input_group) {
  const Int4Layout layout = layout_of(format);
  const bool whole_row = format.block_values == kWordValues;
  const bool rows_fill_words = is_compressed_tensors(layout) || rows % kWordValues == 0;
  // The bounds keep every product below from overflowing.
  constexpr std::uint64_t kMaxSize = 1ull << 28;
  if (rows == 0 || cols == 0 || rows > kMaxSize || cols > kMaxSize || !rows_fill_words ||
      cols % format.block_values != 0) {
    return input_error("{}: {} rows × {} columns, expected columns in whole groups of {}{}",
                       format.name, rows, cols, format.block_values,
                       is_compressed_tensors(layout) ? "" : " and rows in whole words of 8");
  }
  const std::uint64_t groups = whole_row ? 1 : cols / format.block_values;
  const std::uint64_t zero_words =
      layout == Int4Layout::kCtSymmetric ? 0 : (rows + kWordValues - 1) / kWordValues * groups;
  ESPALIER_CHECK(check_part(format, "codes", codes, rows * cols / 2));
  ESPALIER_CHECK(check_part(format, "scales", scales, rows * groups * scale_size(scale_type)));
  ESPALIER_CHECK(check_part(format, "zero points", zeros, zero_words * kWordBytes));
  if (!input_group.empty()) {
    ESPALIER_CHECK(
        check_part(format, "groups of inputs", input_group, cols * sizeof(std::int32_t)));
    for (std::uint64_t col = 0; col < cols; ++col) {
      const auto group = load<std::int32_t>(input_group.data() + col * sizeof(std::int32_t));
      if (group < 0 || static_cast<std::uint64_t>(group) >= groups) {
        return input_error("{}: input feature {} is in group {}, expected 0 to {}", format.name,
                           col, group, groups - 1);
      }
    }
  }
  return Matrix{.format = &format,
                .rows = rows,
                .cols = cols,
                .data = codes,
                .scales = scales,
                .zeros = zeros,
                .scale_type = scale_type,
                .input_group = input_group};
}

}  // namespace espalier::pack
