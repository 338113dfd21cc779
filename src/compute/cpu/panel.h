// The meeting point of formats and products: some rows of a packed matrix, side by side in the
// lanes of a vector, with codes of 8 bits whatever the format.
//
// A format's kernel only unpacks blocks into a panel; the products with one or many activation rows
// are the same for all formats. In a panel, lane l is one output feature. The sum of an output is
// therefore taken in the order of the inputs, group after group, by one lane: its bits depend
// neither on the number of lanes, nor on the rows beside it, nor on the threads.
//
//   y[r][o] = Σ over groups g of  scale[g][o] · (x_scale[r][g] · Σ_i (code[o][i] − zero) · x[r][i])
//                               + minimum[g][o] · (x_scale[r][g] · Σ_i x[r][i])
//
// where x[r] are the activations in 8 bits. The inner sums are exact integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pack/matrix.h"

namespace espalier::cpu {

// Activations share a scale by this many.
inline constexpr std::size_t kCodedGroup = 32;

// Input features that a panel holds at most: with 16 lanes 8 KiB of codes and 4 KiB of scales,
// which stay in the first-level cache. A multiple of every format's block.
inline constexpr std::size_t kPanelInputs = 512;
inline constexpr std::size_t kMaxLanes = 16;

struct Panel {
  alignas(64) std::uint8_t codes[kPanelInputs * kMaxLanes];  // [inputs / 4][lanes][4]
  alignas(64) float scales[kPanelInputs / 16 * kMaxLanes];   // [groups][lanes]
  alignas(64) float minimums[kPanelInputs / 16 * kMaxLanes];
};

// Activation rows in 8 bits: x ≈ scale · code. Groups are those of the weights' format. Where 8
// bits are too few, a row is coded in two planes, the second of which codes what the first one
// misses; they are two rows here, whose products are added.
struct CodedRows {
  std::int8_t* codes;     // [rows, inputs], −127 … 127
  float* scales;          // [rows, inputs / kCodedGroup]
  std::int32_t* offsets;  // [rows, groups]: −zero · Σ codes
  float* sums;            // [rows, groups]: scale · Σ codes
  std::size_t rows;
  std::size_t inputs;
};

// One format's kernel, for one instruction set.
struct CodeKernel {
  std::string_view format;
  std::size_t group;  // weights that share a scale: 16 or 32
  int zero;           // the code of weight 0 when the minimum is 0

  // Fills `panel` with inputs [first, first + inputs) of the rows from `row` on, as many as there
  // are lanes; lanes past the last row repeat it.
  void (*unpack)(const pack::Matrix& w, std::size_t row, std::size_t first, std::size_t inputs,
                 Panel& panel);

  // sums [x.rows, lanes] += the panel's part of the products with all rows of x.
  void (*multiply)(const Panel& panel, const CodedRows& x, std::size_t first, std::size_t inputs,
                   float* sums);
};

// What one instruction set offers for formats with codes.
struct CodeKernels {
  std::int64_t target;  // Highway's number of the instruction set
  std::size_t lanes;  // rows of a panel

  // The kernel of a format, or null.
  const CodeKernel* (*find)(std::string_view format);

  // Codes rows [begin, end) of x [rows, inputs], each in `planes` consecutive rows of `coded`.
  // Groups whose largest magnitude is below 2^-100 become zero, which errs by less than that.
  void (*encode)(const float* x, std::size_t begin, std::size_t end, std::size_t planes,
                 const CodeKernel& kernel, const CodedRows& coded);
};

// Those of the best instruction set of this machine.
[[nodiscard]] const CodeKernels& code_kernels();

}  // namespace espalier::cpu
