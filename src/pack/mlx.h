// MLX's packed matrices: affine codes of 1 to 8 bits with a scale and a bias per group, and the
// microscaling modes mxfp4, mxfp8 and nvfp4. Source: mlx.core.quantize and dequantize, with which
// decoding and encoding agree bit for bit (docs/formats.md says how each mode is laid out).
#pragma once

#include <optional>

#include "pack/matrix.h"

namespace espalier::pack {

// Affine. A row of codes is one little-endian bit stream: code c of `bits` bits is stream bits
// [c·bits, (c+1)·bits). With the scale and bias of its group, both of Matrix::scale_type,
//   decode:      scale · code + bias in float, what a product with float rows multiplies by;
//   dequantize:  the same with the product and the sum each rounded to the type of the scales.
// Matrix::scales and Matrix::zeros are [rows, cols / group]. bits_per_weight counts 16-bit scales.
void decode_mlx_affine_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                            float* out);
void dequantize_mlx_affine_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                                float* out);

// Puts code `index` into the bit stream of a row, which is zero from that place on.
void write_mlx_code(std::byte* row, std::uint64_t index, std::uint32_t bits, unsigned code);

// Bits of a code of an MLX format.
[[nodiscard]] inline std::uint32_t mlx_code_bits(const Format& format) {
  return format.block_bytes * 8 / format.block_values;
}

// Packs values [rows, cols] with scales and biases of type `scale_type`: the bytes of
// mlx.quantize when the values are of that type. Errors: sizes that do not fit, a value that is
// not finite, a group whose scale or bias overflows the type.
[[nodiscard]] Result<PackedMatrix> encode_mlx_affine(const Format& format,
                                                     std::span<const float> values,
                                                     std::uint64_t rows, std::uint64_t cols,
                                                     ScaleType scale_type);

// Format::encode: BF16 scales, as most published models have them.
[[nodiscard]] Result<PackedMatrix> encode_mlx_affine_rows(const Format& format,
                                                          std::span<const float> values,
                                                          std::uint64_t rows, std::uint64_t cols);

// mxfp4 and mxfp8: groups of 32 E2M1 or E4M3 codes (nibbles: the low one first) and an E8M0 scale,
// value = code · scale. nvfp4: groups of 16 E2M1 codes and an E4M3 scale,
// value = code · (scale · Matrix::global_scale). Matrix::scales is U8 [rows, cols / group].
void decode_mxfp4_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out);
void decode_mxfp8_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out);
void decode_nvfp4_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out);

// Packs values of type `value_type` as mlx.quantize packs an array of that type: MLX computes the
// scales in the array's own precision. `global_scale` is nvfp4's optional tensor scale, normally
// the largest magnitude of the tensor. Errors: as above, and a global scale that is not a positive
// number or belongs to another mode.
[[nodiscard]] Result<PackedMatrix> encode_mlx_float(const Format& format,
                                                    std::span<const float> values,
                                                    std::uint64_t rows, std::uint64_t cols,
                                                    ScaleType value_type,
                                                    std::optional<float> global_scale);

// Format::encode: computed in F32, without a tensor scale.
[[nodiscard]] Result<PackedMatrix> encode_mlx_float_rows(const Format& format,
                                                         std::span<const float> values,
                                                         std::uint64_t rows, std::uint64_t cols);

// Matrix::global_scale of an nvfp4 tensor whose file holds `global_scale`: MLX stores the
// magnitude that 6 · 448, the largest code times the largest scale, stands for.
[[nodiscard]] inline float nvfp4_factor(float global_scale) { return global_scale / (6 * 448.0f); }

// A view of rows × cols values in the MLX format `format`. Errors: columns that do not fill whole
// groups, parts whose size is not the one that rows and columns ask for. `biases` is empty for the
// microscaling modes, whose `scale_type` means nothing.
[[nodiscard]] Result<Matrix> mlx_matrix(const Format& format, std::uint64_t rows,
                                        std::uint64_t cols, Bytes codes, Bytes scales, Bytes biases,
                                        ScaleType scale_type);

// The entries of the formats table.
constexpr Format mlx_affine(std::string_view name, std::uint32_t bits, std::uint32_t group) {
  return {.name = name,
          .family = Family::kMlx,
          .block_values = group,
          .block_bytes = group * bits / 8,
          .bits_per_weight = bits + 32.0 / group,
          .decode_rows = decode_mlx_affine_rows,
          .dequantize_rows = dequantize_mlx_affine_rows,
          .encode = encode_mlx_affine_rows};
}

constexpr Format mlx_float(std::string_view name, std::uint32_t bits, std::uint32_t group,
                           decltype(Format::decode_rows) decode) {
  return {.name = name,
          .family = Family::kMlx,
          .block_values = group,
          .block_bytes = group * bits / 8,
          .bits_per_weight = bits + 8.0 / group,
          .decode_rows = decode,
          .encode = encode_mlx_float_rows};
}

}  // namespace espalier::pack
