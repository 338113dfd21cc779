// A packed matrix in device memory: what pack::Matrix is on the host.
#pragma once

#include "compute/gpu/kernels/bits.h"

namespace espalier::gpu::ESPALIER_DIALECT {

struct Weights {
  Codes data;                   // Matrix::data; all as in the file
  Codes scales;                 // Matrix::scales
  Codes zeros;                  // Matrix::zeros
  Codes head_offsets;           // Matrix::head_offsets, or null
  Codes input_group;            // Matrix::input_group, or null
  Global<const uint16_t> grid;  // the points of an IQ format (pack/iq_grids.h)
  uint32_t rows;                // EXL3: padded, as exl3_inner()
  uint32_t cols;                // the same
  uint32_t block_values;        // of the format; of int4 formats and MLX: the size of a group
  uint32_t block_bytes;         // of the format
  uint32_t scale_type;          // pack::ScaleType
  uint32_t heads;               // of an n-gram table
  float global_scale;
};

// Number `index` of an array of numbers of a pack::ScaleType.
ESPALIER_DEVICE float scale_at(Codes from, uint32_t type, uint64_t index) {
  if (type == 0) return half_at(from + index * 2);
  if (type == 1) return float_of(read16(from + index * 2) << 16);
  return float_of(read32(from + index * 4));
}

// A format is a struct with
//
//   static float weight(Arguments<Weights> w, uint32_t row, uint32_t col)
//
// which gives the bits that Format::decode_rows gives. A block format says how value v of a block
// is made, and Blocks finds the block.
template <typename Block>
struct Blocks {
  static ESPALIER_DEVICE float weight(Arguments<Weights> w, uint32_t row, uint32_t col) {
    const uint64_t block =
        static_cast<uint64_t>(row) * (w.cols / Block::kValues) + col / Block::kValues;
    return Block::value(w.data + block * Block::kBytes, col % Block::kValues);
  }
};

// The same for blocks that need the points of a grid.
template <typename Block>
struct GridBlocks {
  static ESPALIER_DEVICE float weight(Arguments<Weights> w, uint32_t row, uint32_t col) {
    const uint64_t block =
        static_cast<uint64_t>(row) * (w.cols / Block::kValues) + col / Block::kValues;
    return Block::value(w.data + block * Block::kBytes, col % Block::kValues, w.grid);
  }
};

}  // namespace espalier::gpu::ESPALIER_DIALECT
