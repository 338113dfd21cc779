// EXL3, the trellis format of exllamav3: weight matrices between two Hadamard rotations, quantized
// embedding tables, hashed n-gram tables. Every weight is a function of 16 consecutive bits of a
// ring, of which the next weight keeps all but K. Decoding agrees bit for bit with exllamav3 1.6.5
// (docs/formats.md gives the layouts).
#pragma once

#include "pack/matrix.h"

namespace espalier::pack {

// How 16 bits of a ring become a weight.
enum class Codebook { k3Inst, kMcg, kMul1 };

// The weight of a 16-bit state: a half-precision number.
[[nodiscard]] float exl3_weight(Codebook codebook, std::uint16_t state);

// The weights of all 65,536 states. Filled on first use.
[[nodiscard]] const float* exl3_weights(Codebook codebook);

// --- Weight matrices -----------------------------------------------------------------------------

// y = H(H(x ∘ suh) · inner) ∘ svh, where H is the 128-point Hadamard transform of each run of 128
// channels. Matrix: data is the trellis I16 [cols/16, rows/16, 16·K] as in the file, a 16×16 tile
// each; input_scale is suh and output_scale svh. Rows and columns that are no multiple of 128 are
// stored as if zeros followed up to the next one: data, suh and svh then have the padded sizes.

inline constexpr std::uint64_t kExl3Run = 128;

// The stored size of a dimension of `size` features.
[[nodiscard]] constexpr std::uint64_t exl3_padded(std::uint64_t size) {
  return (size + kExl3Run - 1) / kExl3Run * kExl3Run;
}

// The format of a trellis whose last dimension is `width` 16-bit words (16·K), or null.
[[nodiscard]] const Format* find_exl3_format(Codebook codebook, std::uint64_t width);

// A view of a weight matrix of rows (output features) × cols (input features). Errors: parts whose
// size is not the one that the padded rows and columns ask for.
[[nodiscard]] Result<Matrix> exl3_matrix(const Format& format, std::uint64_t rows,
                                         std::uint64_t cols, Bytes trellis, Bytes suh, Bytes svh);

// F16 scales ±1 for the sign bitmaps (`su`, `sv`) of older packs: one bit per channel, low bits
// first, a set bit is −1.
[[nodiscard]] std::vector<std::byte> exl3_signs(Bytes bitmap);

// The matrix between the rotations with its padding: [padded rows, padded cols], no scales.
[[nodiscard]] Matrix exl3_inner(const Matrix& matrix);

// H(x ∘ suh): x [cols] to `rotated` [padded cols].
void exl3_rotate_input(const Matrix& matrix, const float* x, float* rotated);

// H(y) ∘ svh in place: y [padded rows], the first rows of which are the result.
void exl3_rotate_output(const Matrix& matrix, float* y);

// --- Tables --------------------------------------------------------------------------------------

// An embedding row is ceil(cols/256) rings back to back; a ring is an F16 scale and 256 symbols of
// K bits. Its values are scaled, transformed by the 256-point Hadamard, multiplied by the signs
// F16 [256 · rings] (±1, in Matrix::scales) and rounded to half.
[[nodiscard]] Result<Matrix> exl3_embedding_matrix(const Format& format, std::uint64_t rows,
                                                   std::uint64_t cols, Bytes trellis, Bytes signs);

inline constexpr std::uint64_t kExl3NgramDim = 160;

// A row of an n-gram table is one ring of 160 values, scaled; plus the bias of its hash head,
// head_bias F16 [heads, 160]; rounded to half. head_offsets I64 [heads]: the first row of each
// head, starting at 0, never falling. Both may be empty: no bias.
[[nodiscard]] Result<Matrix> exl3_ngram_matrix(const Format& format, std::uint64_t rows,
                                               Bytes trellis, Bytes head_bias, Bytes head_offsets);

// --- The formats table ---------------------------------------------------------------------------

template <Codebook kCodebook>
void decode_exl3_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out);
template <Codebook kCodebook>
void dequantize_exl3_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                          float* out);
void decode_exl3_embedding_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                                float* out);
void decode_exl3_ngram_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                            float* out);

// K = `bits` bits per weight, a whole number or (MUL1) a whole number and a half.
template <Codebook kCodebook>
constexpr Format exl3_weights_format(std::string_view name, double bits) {
  return {.name = name,
          .family = Family::kExl3,
          .block_values = 256,
          .block_bytes = static_cast<std::uint32_t>(32 * bits),
          .bits_per_weight = bits,
          .decode_rows = decode_exl3_rows<kCodebook>,
          .dequantize_rows = dequantize_exl3_rows<kCodebook>};
}

// Rings of `dim` symbols of `bits` bits.
constexpr Format exl3_table_format(std::string_view name, std::uint32_t bits, std::uint32_t dim,
                                   decltype(Format::decode_rows) decode) {
  return {.name = name,
          .family = Family::kExl3,
          .block_values = dim,
          .block_bytes = 2 + dim * bits / 8,
          .bits_per_weight = bits + 16.0 / dim,
          .decode_rows = decode};
}

}  // namespace espalier::pack
