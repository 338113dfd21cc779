// The meeting point of formats and products: some rows of a packed matrix, side by side in the
// lanes of a vector, with codes of 8 bits whatever the format.
//
// A format's kernel only unpacks blocks into a panel; the products with one or many activation rows
// are the same for all formats. In a panel, lane l is one output feature. The sum of an output is
// therefore taken in the order of the inputs, group after group, by one lane: its bits depend
// neither on the number of lanes, nor on the rows beside it, nor on the threads.
//
//   y[r][o] = Σ over groups g of  scale[g][o] · x_scale[r][g] · Σ_i (code[o][i] − zero) · x[r][i]
//                               + minimum[g][o] · (x_scale[r][g] · Σ_i x[r][i])
//
// where x[r] are the activations as integers. The inner sums are exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pack/matrix.h"

namespace espalier::cpu {

// Activations share a scale by this many.
inline constexpr std::size_t kCodedGroup = 32;

// The integer of the largest activation of a group.
inline constexpr int kMostCode = 127 * 128;

// Input features that a panel holds at most: with 16 lanes 8 KiB of codes and 4 KiB of scales,
// which stay in the first-level cache. A multiple of every format's block.
inline constexpr std::size_t kPanelInputs = 512;
inline constexpr std::size_t kMaxLanes = 16;

struct Panel {
  alignas(64) std::uint8_t codes[kPanelInputs * kMaxLanes];  // [inputs / 4][lanes][4]
  alignas(64) float scales[kPanelInputs / 16 * kMaxLanes];   // [groups][lanes]
  alignas(64) float minimums[kPanelInputs / 16 * kMaxLanes];
};

// 32 activations of one row as integers 128 · high + low, at most kMostCode in magnitude; and what
// the weights' format needs to know of them: for each of its groups, −zero · Σ x and x_scale · Σ x.
struct CodedGroup {
  std::int8_t high[kCodedGroup];
  std::int8_t low[kCodedGroup];  // −64 … 63
  float scale;
  std::int32_t offsets[kCodedGroup / 16];
  float sums[kCodedGroup / 16];
};

// Activation rows as integers. Rows come in tiles of 8, 4, 2 or 1, the largest first; a tile that
// begins at row r is [inputs / 32][its rows] from groups[r · inputs / 32] on.
struct CodedRows {
  CodedGroup* groups;
  std::size_t rows;
  std::size_t inputs;
};
inline constexpr std::size_t kTileRows = 8;

// Rows of the tile that begins at row r of `rows`.
[[nodiscard]] constexpr std::size_t tile_rows(std::size_t rows, std::size_t r) {
  std::size_t tile = kTileRows;
  while (r + tile > rows) tile /= 2;
  return tile;
}

// Where a row's groups are: every `stride`th from `groups` on.
struct CodedRow {
  CodedGroup* groups;
  std::size_t stride;
};
[[nodiscard]] inline CodedRow coded_row(const CodedRows& x, std::size_t r) {
  std::size_t first = r / kTileRows * kTileRows;  // of its tile
  while (r >= first + tile_rows(x.rows, first)) first += tile_rows(x.rows, first);
  return {x.groups + first * (x.inputs / kCodedGroup) + (r - first), tile_rows(x.rows, first)};
}

// Arranged weights (arrange.h) are read in this many places in turn, equal parts of what a thread
// has to do: memory gives more to several streams than to one.
inline constexpr std::size_t kStreams = 4;

// Asks memory for what comes next in all streams while one of them is multiplied.
struct Ahead {
  const std::byte* at = nullptr;    // of the first stream
  const std::byte* end = nullptr;   // of the first stream
  const std::byte* last = nullptr;  // the end of the last
  std::size_t stride = 0;           // from one stream to the next
  std::size_t stream = 0;           // whose turn it is
  std::size_t bytes = 0;            // of kCodedGroup inputs of a panel

  // To be called once for as many inputs.
  void ask() {
    constexpr std::size_t kLine = 64;
    const std::byte* from = at + stream * stride;
    if (at >= end || from >= last) return;
    for (std::size_t b = 0; b < bytes; b += kLine) __builtin_prefetch(from + b);
    stream = from + stride < last ? stream + 1 : 0;
    if (stream == 0) at += bytes;
  }
};

// How a format's codes are to be multiplied.
struct CodeShape {
  std::size_t group = 32;  // weights that share a scale: 16 or 32
  int zero = 0;            // the code of weight 0 when the minimum is 0
  bool minimums = false;   // whether groups have one
  int bits = 7;            // of a code: at most 7 or 8

  bool operator==(const CodeShape&) const = default;
};

// One format's kernel, for one instruction set.
struct CodeKernel {
  std::string_view format;  // its name; one that ends in '-' or "-g" stands for all that begin so
  std::size_t block;        // inputs that are unpacked together: a divisor of kPanelInputs
  CodeShape shape;

  // Fills `panel` with inputs [first, first + inputs) of the rows from `row` on, as many as there
  // are lanes; lanes past the last row repeat it.
  void (*unpack)(const pack::Matrix& w, std::size_t row, std::size_t first, std::size_t inputs,
                 Panel& panel);

  // The same from the rows of that panel as arrange.h puts them; null where it can't.
  void (*unpack_arranged)(const std::byte* rows, std::size_t first, std::size_t inputs,
                          Panel& panel) = nullptr;

  // sums [tile, lanes] += the products of a tile of rows with `blocks` blocks from `blocks_at` on,
  // as arrange.h puts them, without a panel; x is the tile's first group there. The bits are those
  // of unpacking a panel and multiplying with that.
  void (*multiply_arranged)(const std::byte* blocks_at, std::size_t blocks, const CodedGroup* x,
                            std::size_t tile, Ahead& ahead, float* sums) = nullptr;
  std::size_t block_bytes = 0;  // needed for that
  std::size_t odd_at = 0;  // where the part of a block is that is no word of four bytes, if any
};

// What one instruction set offers for formats with codes.
struct CodeKernels {
  std::int64_t target;  // Highway's number of the instruction set
  std::size_t lanes;    // rows of a panel

  // sums [x.rows, lanes] += the products of all rows of x with the panel's inputs [first, first +
  // inputs).
  void (*multiply)(const CodeShape& shape, const Panel& panel, const CodedRows& x,
                   std::size_t first, std::size_t inputs, float* sums);

  // Codes `inputs` activations of a row as the groups that begin with coded.groups[0]. Groups whose
  // largest magnitude is below 2^-100 become zero, which errs by less than that.
  void (*encode)(const float* x, std::size_t inputs, const CodeShape& shape, const CodedRow& coded);
};

// Those of the best instruction set of this machine.
[[nodiscard]] const CodeKernels& code_kernels();

// The kernel for a matrix on the best instruction set of this machine, or null: its format has
// none, its rows have parts of a group of 32, or each input has a group of its own (act-order).
[[nodiscard]] const CodeKernel* find_code_kernel(const pack::Matrix& w);

// The formats of each family's file: a list for the best instruction set.
[[nodiscard]] std::span<const CodeKernel> legacy_code_kernels();
[[nodiscard]] std::span<const CodeKernel> k_code_kernels();
[[nodiscard]] std::span<const CodeKernel> grouped_code_kernels();
[[nodiscard]] std::span<const CodeKernel> grid_code_kernels();

}  // namespace espalier::cpu
