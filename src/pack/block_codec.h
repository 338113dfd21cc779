// From the scalar codec of one block to the row functions of the formats table.
#pragma once

#include <algorithm>
#include <cmath>

#include "pack/matrix.h"

namespace espalier::pack {

// Format::decode_rows of a format whose rows are Blocks back to back, where
// Block::decode(float out[Block::kValues]) is the definition.
template <typename Block>
void decode_block_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out) {
  const std::uint64_t blocks = matrix.cols / Block::kValues * count;
  const std::byte* from = matrix.data.data() + matrix.cols / Block::kValues * first * sizeof(Block);
  for (std::uint64_t b = 0; b < blocks; ++b) {
    load<Block>(from + b * sizeof(Block)).decode(out + b * Block::kValues);
  }
}

// The block of finite values: Block::encode(const float values[Block::kValues]), where that is one
// right answer. Where the encoder searches, Block::search(values) is one pass of it. It finds
// values that a block can hold exactly, so what it found becomes its input until that stays as it
// is, nearly always in the second pass. So encoding what such a block decodes to gives the same
// block.
template <typename Block>
Block encode_block(const float* values) {
  if constexpr (requires { Block::search(values); }) {
    constexpr int kMostPasses = 8;
    float wanted[Block::kValues];
    float decoded[Block::kValues];
    std::copy_n(values, Block::kValues, wanted);
    Block block{};
    for (int pass = 0; pass < kMostPasses; ++pass) {
      block = Block::search(wanted);
      block.decode(decoded);
      if (!std::isfinite(decoded[0]) || std::ranges::equal(wanted, decoded)) break;
      std::ranges::copy(decoded, wanted);
    }
    return block;
  } else {
    return Block::encode(values);
  }
}

// Format::encode of such a format. A block whose scale cannot hold its values decodes to something
// that is not finite, and that is how it is noticed.
template <typename Block>
Result<PackedMatrix> encode_block_rows(const Format& format, std::span<const float> values,
                                       std::uint64_t rows, std::uint64_t cols) {
  ESPALIER_TRY(const std::uint64_t row_bytes, packed_bytes(format, cols));
  if (checked_mul(rows, cols) != values.size()) {
    return input_error("{}: {} values, expected {} rows × {} columns", format.name, values.size(),
                       rows, cols);
  }
  PackedMatrix packed;
  packed.data.resize(rows * row_bytes);
  for (std::size_t v = 0; v < values.size(); v += Block::kValues) {
    for (std::size_t i = v; i < v + Block::kValues; ++i) {
      if (!std::isfinite(values[i])) {
        return input_error("{}: value {} of row {} is {}, expected a finite number", format.name,
                           i % cols, i / cols, values[i]);
      }
    }
    const Block block = encode_block<Block>(values.data() + v);
    float decoded[Block::kValues];
    block.decode(decoded);
    for (int i = 0; i < Block::kValues; ++i) {
      if (!std::isfinite(decoded[i])) {
        return input_error("{}: value {} of row {} is {}, too large for this format", format.name,
                           (v + i) % cols, (v + i) / cols, values[v + i]);
      }
    }
    std::memcpy(packed.data.data() + v / Block::kValues * sizeof(Block), &block, sizeof(Block));
  }
  ESPALIER_TRY(packed.view, block_matrix(format, rows, cols, packed.data));
  return packed;
}

}  // namespace espalier::pack
