// Plain values that a file has column after column: what some checkpoints of mixtures of experts
// keep where others have one row after another.
#pragma once

#include "pack/matrix.h"

namespace espalier::pack {

// The matrix [cols, rows] whose values are those of the plain (F32, F16 or BF16) `matrix`, read as
// its transpose: the same bytes in the format of that name with "-T".
[[nodiscard]] Result<Matrix> transposed(const Matrix& matrix);

// Format::decode_rows where Matrix::data is [cols, rows] of Blocks of one value.
template <typename Block>
void decode_transposed_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                            float* out) {
  for (std::uint64_t col = 0; col < matrix.cols; ++col) {
    const std::byte* from = matrix.data.data() + (col * matrix.rows + first) * sizeof(Block);
    for (std::uint64_t r = 0; r < count; ++r) {
      load<Block>(from + r * sizeof(Block)).decode(out + r * matrix.cols + col);
    }
  }
}

template <typename Block>
constexpr Format transposed_format(std::string_view name) {
  return {.name = name,
          .family = Family::kTransposed,
          .block_values = 1,
          .block_bytes = sizeof(Block),
          .bits_per_weight = 8.0 * sizeof(Block),
          .decode_rows = decode_transposed_rows<Block>};
}

}  // namespace espalier::pack
