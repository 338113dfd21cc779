// A matrix in its packed form, and the table of all forms it can have.
//
// A Matrix is a read-only view: it owns nothing and points into a mapped file or into a
// PackedMatrix. It always means W [rows, cols] with rows = output features and cols = input
// features, so that y = x·Wᵀ; how its bits are laid out is its Format's business alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace espalier::pack {

struct Matrix;
struct PackedMatrix;

// Who defined the format. It says which members of Matrix are used.
enum class Family { kGguf, kMlx, kExl3, kGptq, kAwq, kCompressedTensors, kTransposed };

inline constexpr std::uint32_t kNoGgmlType = 0xffffffffu;

// One packed format: its place in files, its layout in numbers, and its definition as functions.
struct Format {
  std::string_view name;  // the name users know: "Q4_1"
  Family family = Family::kGguf;
  std::uint32_t ggml_type = kNoGgmlType;  // its number in GGUF files
  std::uint32_t block_values = 1;         // a row holds a multiple of this many values
  std::uint32_t block_bytes = 0;          // bytes of such a block in Matrix::data
  double bits_per_weight = 0;             // scales included

  // Decodes rows [first, first + count) of `matrix` into out [count, cols]. This is the definition
  // of the format, and what products and look-ups compute with: scalar, exact in float. (EXL3: the
  // weights between its two rotations.)
  void (*decode_rows)(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                      float* out) = nullptr;

  // The same rows of the dense matrix that the packed one stands for, as the format's own tools
  // write it; null where that is what decode_rows gives. EXL3: rotations and scales applied. MLX:
  // rounded to the type of the scales.
  void (*dequantize_rows)(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                          float* out) = nullptr;

  // Packs values [rows, cols]; null where Espalier only reads the format. Values that are not
  // finite and columns that do not fill whole blocks are input errors.
  Result<PackedMatrix> (*encode)(const Format& format, std::span<const float> values,
                                 std::uint64_t rows, std::uint64_t cols) = nullptr;
};

// The type of the numbers in Matrix::scales (and of MLX's biases).
enum class ScaleType { kF16, kBF16, kF32 };

struct Matrix {
  const Format* format = nullptr;
  std::uint64_t rows = 0;  // output features
  std::uint64_t cols = 0;  // input features
  Bytes data;              // GGUF: blocks, row after row. Others: the codes, as in the file

  // What formats other than GGUF's keep beside the codes; empty where a format has no such part.
  Bytes scales;  // one per group. EXL3 embedding tables: signs, F16 [cols up to whole rings]
  Bytes zeros;   // MLX: biases. GPTQ, AWQ, compressed-tensors: zero points. EXL3 n-gram tables:
                 // head_bias, F16 [heads, cols]
  ScaleType scale_type = ScaleType::kF16;  // of scales, and of MLX's biases
  float global_scale = 1;                  // NVFP4: a factor on top of the scales
  Bytes input_group;                       // GPTQ act-order: I32 [cols], the group of each input
  Bytes input_scale;                       // EXL3: suh, F16 [cols]
  Bytes output_scale;                      // EXL3: svh, F16 [rows]; both padded as exl3.h says
  Bytes head_offsets;                      // EXL3 n-gram tables: I64 [heads], each head's first row
};

// A packed matrix with the memory that its view points into. It moves, but does not copy.
struct PackedMatrix {
  Matrix view;
  std::vector<std::byte> data, scales, zeros;

  PackedMatrix() = default;
  PackedMatrix(PackedMatrix&&) = default;
  PackedMatrix& operator=(PackedMatrix&&) = default;
};

// Every format, in the order in which documents list them.
[[nodiscard]] std::span<const Format> formats();

// The format of that name (exact), or null.
[[nodiscard]] const Format* find_format(std::string_view name);

// The format of that GGUF type number, or null.
[[nodiscard]] const Format* find_ggml_format(std::uint32_t ggml_type);

// The bytes that `values` consecutive values take in a block format, or an error when they do not
// fill whole blocks or the size overflows.
[[nodiscard]] Result<std::uint64_t> packed_bytes(const Format& format, std::uint64_t values);

// A view of rows × cols values of a block format at the front of `data`. Errors: columns that do
// not fill whole blocks, too few bytes.
[[nodiscard]] Result<Matrix> block_matrix(const Format& format, std::uint64_t rows,
                                          std::uint64_t cols, Bytes data);

// Rows [first, first + count) of `matrix`, in range, as a matrix of their own; nothing where the
// format does not keep what belongs to a row together (EXL3, GPTQ, AWQ, zero points that rows
// share).
[[nodiscard]] std::optional<Matrix> row_view(const Matrix& matrix, std::uint64_t first,
                                             std::uint64_t count);

// Decodes rows [first, first + count) into out [count, cols]; the caller keeps them in range.
inline void decode_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                        float* out) {
  matrix.format->decode_rows(matrix, first, count, out);
}

// The same rows of the dense matrix that `matrix` stands for.
inline void dequantize_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                            float* out) {
  const Format& format = *matrix.format;
  (format.dequantize_rows ? format.dequantize_rows : format.decode_rows)(matrix, first, count, out);
}

}  // namespace espalier::pack
