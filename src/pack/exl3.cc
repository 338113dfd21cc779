#include "pack/exl3.h"

#include <algorithm>
#include <vector>

#include "base/half.h"
#include "pack/hadamard.h"

namespace espalier::pack {
namespace {

constexpr int kTile = 16;

// --- States --------------------------------------------------------------------------------------

// Calls visit(t, state) for the 256 weights of a tile. Its ring is 128·double_bits bits
// (double_bits = 2K): little-endian 32-bit words, each read from its top bit down. The state of
// weight t ends after bit ⌊(t+1)·K⌋, so that a half-integer K alternates between one bit fewer and
// one more.
template <typename Visit>
void for_each_tile_state(const std::byte* tile, std::uint32_t double_bits, Visit visit) {
  const std::uint32_t ring_bits = 128 * double_bits;
  for (std::uint32_t t = 0; t < 256; ++t) {
    const std::uint32_t end = (t + 1) * double_bits / 2;
    const std::uint32_t begin = (end + ring_bits - 16) % ring_bits;
    const std::uint64_t high = load<std::uint32_t>(tile + begin / 32 * 4);
    const std::uint64_t low = load<std::uint32_t>(tile + (begin + 32) % ring_bits / 32 * 4);
    visit(t, static_cast<std::uint16_t>((high << 32 | low) >> (48 - begin % 32)));
  }
}

// Decodes a tile into out[output feature][input feature], rows `stride` apart. The place of weight
// t is that of a tensor-core fragment (m16n8k16): lane t/8 owns eight weights.
template <typename Real>
void decode_tile(const std::byte* tile, std::uint32_t double_bits, const float* weights, Real* out,
                 std::uint64_t stride) {
  constexpr int kInputStep[4] = {0, 1, 8, 9};
  for_each_tile_state(tile, double_bits, [&](std::uint32_t t, std::uint16_t state) {
    const std::uint32_t lane = t / 8;
    const std::uint32_t input = 2 * (lane % 4) + kInputStep[t % 4];
    const std::uint32_t output = lane / 4 + (t % 8 < 4 ? 0 : 8);
    out[output * stride + input] = weights[state];
  });
}

// Where tile (input tile, output tile) begins.
const std::byte* tile_at(const Matrix& matrix, std::uint64_t input, std::uint64_t output) {
  const std::uint64_t output_tiles = exl3_padded(matrix.rows) / kTile;
  return matrix.data.data() + (input * output_tiles + output) * matrix.format->block_bytes;
}

std::uint32_t double_bits(const Format& format) { return format.block_bytes / 16; }

// Decodes a ring of a table into out [dim]: an F16 scale, then symbols of K bits, low bits first.
// A state is the newest symbol with the ones before it above, cut to 16 bits.
void decode_ring(const std::byte* ring, const Format& format, float* out) {
  const std::uint32_t dim = format.block_values;
  const std::uint32_t bits = (format.block_bytes - 2) * 8 / dim;
  const float* weights = exl3_weights(Codebook::kMul1);
  const float scale = half_to_float(load<std::uint16_t>(ring));
  const std::byte* codes = ring + 2;
  std::uint32_t state = 0;
  // The ring is closed: 16 symbols before its first value fill the state.
  for (std::uint32_t i = dim - 16; i < 2 * dim; ++i) {
    const std::uint32_t bit = i % dim * bits;
    const std::uint32_t shift = bit % 8;
    std::uint32_t window = std::to_integer<std::uint32_t>(codes[bit / 8]) >> shift;
    if (shift + bits > 8) {
      window |= std::to_integer<std::uint32_t>(codes[bit / 8 + 1]) << (8 - shift);
    }
    state = (state << bits | (window & ((1u << bits) - 1))) & 0xffffu;
    if (i >= dim) out[i - dim] = weights[state] * scale;
  }
}

float rounded_to_half(float value) { return half_to_float(float_to_half(value)); }

Status check_part(const Format& format, std::string_view part, Bytes found,
                  std::uint64_t expected) {
  if (found.size() == expected) return {};
  return input_error("{}: {} has {} bytes, expected {}", format.name, part, found.size(), expected);
}

}  // namespace

float exl3_weight(Codebook codebook, std::uint16_t state) {
  std::uint32_t x = state;
  if (codebook == Codebook::kMul1) {
    x *= 0x83dcd12du;
    const std::uint32_t bytes = (x & 0xff) + (x >> 8 & 0xff) + (x >> 16 & 0xff) + (x >> 24);
    // 1024 + bytes is the number whose half-precision bits the kernels make by an OR. Product and
    // sum fit a float exactly, so that the one rounding is to half.
    const float value = static_cast<float>(1024 + bytes) * half_to_float(0x1eee);
    return rounded_to_half(value + half_to_float(0xc931));
  }
  x = codebook == Codebook::k3Inst ? x * 89226354u + 64248484u : x * 0xcbac1fedu;
  x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
  return rounded_to_half(half_to_float(static_cast<std::uint16_t>(x)) +
                         half_to_float(static_cast<std::uint16_t>(x >> 16)));
}

const float* exl3_weights(Codebook codebook) {
  static const std::vector<float> all = [] {
    std::vector<float> table;
    table.reserve(3 * 65536);
    for (const Codebook each : {Codebook::k3Inst, Codebook::kMcg, Codebook::kMul1}) {
      for (std::uint32_t state = 0; state < 65536; ++state) {
        table.push_back(exl3_weight(each, static_cast<std::uint16_t>(state)));
      }
    }
    return table;
  }();
  return all.data() + static_cast<std::size_t>(codebook) * 65536;
}

template <Codebook kCodebook>
void decode_exl3_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out) {
  const float* weights = exl3_weights(kCodebook);
  float tile[kTile][kTile];
  for (std::uint64_t row = first; row < first + count;) {
    const std::uint64_t in_tile = row % kTile;
    const std::uint64_t rows = std::min(kTile - in_tile, first + count - row);
    for (std::uint64_t col = 0; col < matrix.cols; col += kTile) {
      decode_tile(tile_at(matrix, col / kTile, row / kTile), double_bits(*matrix.format), weights,
                  tile[0], kTile);
      const std::uint64_t cols = std::min<std::uint64_t>(kTile, matrix.cols - col);
      for (std::uint64_t r = 0; r < rows; ++r) {
        std::copy_n(tile[in_tile + r], cols, out + r * matrix.cols + col);
      }
    }
    row += rows;
    out += rows * matrix.cols;
  }
}

// Row n of the dense matrix is svh[n] · suh[k] · (H · inner · H)[n][k]; in double, rounded once.
// Works on blocks of 128 × 128: rows are best asked for in runs of 128.
template <Codebook kCodebook>
void dequantize_exl3_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                          float* out) {
  constexpr std::uint64_t kRun = kExl3Run;
  const float* weights = exl3_weights(kCodebook);
  const auto scale_at = [](Bytes scales, std::uint64_t i) -> double {
    return half_to_float(load<std::uint16_t>(scales.data() + 2 * i));
  };
  std::vector<double> block(kRun * kRun);
  double column[kRun];
  for (std::uint64_t row = first; row < first + count;) {
    const std::uint64_t run_row = row / kRun * kRun;
    const std::uint64_t rows = std::min(run_row + kRun, first + count) - row;
    for (std::uint64_t col = 0; col < matrix.cols; col += kRun) {
      for (std::uint64_t n = 0; n < kRun; n += kTile) {
        for (std::uint64_t k = 0; k < kRun; k += kTile) {
          decode_tile(tile_at(matrix, (col + k) / kTile, (run_row + n) / kTile),
                      double_bits(*matrix.format), weights, block.data() + n * kRun + k, kRun);
        }
      }
      for (std::uint64_t n = 0; n < kRun; ++n) hadamard<kRun>(block.data() + n * kRun);
      for (std::uint64_t k = 0; k < std::min(kRun, matrix.cols - col); ++k) {
        for (std::uint64_t n = 0; n < kRun; ++n) column[n] = block[n * kRun + k];
        hadamard<kRun>(column);
        for (std::uint64_t r = 0; r < rows; ++r) {
          out[r * matrix.cols + col + k] =
              static_cast<float>(column[row - run_row + r] * scale_at(matrix.input_scale, col + k) *
                                 scale_at(matrix.output_scale, row + r));
        }
      }
    }
    row += rows;
    out += rows * matrix.cols;
  }
}

template void decode_exl3_rows<Codebook::k3Inst>(const Matrix&, std::uint64_t, std::uint64_t,
                                                 float*);
template void decode_exl3_rows<Codebook::kMcg>(const Matrix&, std::uint64_t, std::uint64_t, float*);
template void decode_exl3_rows<Codebook::kMul1>(const Matrix&, std::uint64_t, std::uint64_t,
                                                float*);
template void dequantize_exl3_rows<Codebook::k3Inst>(const Matrix&, std::uint64_t, std::uint64_t,
                                                     float*);
template void dequantize_exl3_rows<Codebook::kMcg>(const Matrix&, std::uint64_t, std::uint64_t,
                                                   float*);
template void dequantize_exl3_rows<Codebook::kMul1>(const Matrix&, std::uint64_t, std::uint64_t,
                                                    float*);

void decode_exl3_embedding_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                                float* out) {
  constexpr int kRing = 256;
  const Format& format = *matrix.format;
  const std::uint64_t rings = (matrix.cols + kRing - 1) / kRing;
  float values[kRing];
  for (std::uint64_t row = first; row < first + count; ++row) {
    for (std::uint64_t ring = 0; ring < rings; ++ring) {
      decode_ring(matrix.data.data() + (row * rings + ring) * format.block_bytes, format, values);
      hadamard<kRing>(values);
      for (std::uint64_t i = ring * kRing; i < std::min((ring + 1) * kRing, matrix.cols); ++i) {
        const float sign = half_to_float(load<std::uint16_t>(matrix.scales.data() + 2 * i));
        *out++ = rounded_to_half(values[i % kRing] * sign);
      }
    }
  }
}

void decode_exl3_ngram_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                            float* out) {
  const Format& format = *matrix.format;
  const std::uint64_t heads = matrix.head_offsets.size() / 8;
  const auto head_begin = [&](std::uint64_t head) {
    return load<std::uint64_t>(matrix.head_offsets.data() + 8 * head);
  };
  std::uint64_t head = 0;
  for (std::uint64_t row = first; row < first + count; ++row, out += kExl3NgramDim) {
    decode_ring(matrix.data.data() + row * format.block_bytes, format, out);
    while (head + 1 < heads && head_begin(head + 1) <= row) ++head;
    for (std::uint64_t i = 0; i < kExl3NgramDim; ++i) {
      if (heads != 0) {
        out[i] += half_to_float(
            load<std::uint16_t>(matrix.zeros.data() + 2 * (head * kExl3NgramDim + i)));
      }
      out[i] = rounded_to_half(out[i]);
    }
  }
}

const Format* find_exl3_format(Codebook codebook, std::uint64_t width) {
  constexpr decltype(Format::decode_rows) kDecoders[] = {decode_exl3_rows<Codebook::k3Inst>,
                                                         decode_exl3_rows<Codebook::kMcg>,
                                                         decode_exl3_rows<Codebook::kMul1>};
  const auto decoder = kDecoders[static_cast<std::size_t>(codebook)];
  for (const Format& format : formats()) {
    if (format.decode_rows == decoder && format.block_bytes / 2 == width) return &format;
  }
  return nullptr;
}

Result<Matrix> exl3_matrix(const Format& format, std::uint64_t rows, std::uint64_t cols,
                           Bytes trellis, Bytes suh, Bytes svh) {
  const std::uint64_t stored_rows = exl3_padded(rows);
  const std::uint64_t stored_cols = exl3_padded(cols);
  const auto tiles = checked_mul(stored_rows / kTile, stored_cols / kTile);
  const auto trellis_bytes = tiles ? checked_mul(*tiles, format.block_bytes) : std::nullopt;
  // A size near the end of the range wraps around to zero.
  if (!trellis_bytes || stored_rows == 0 || stored_cols == 0) {
    return input_error("{}: {} rows × {} columns are not the size of a matrix", format.name, rows,
                       cols);
  }
  ESPALIER_CHECK(check_part(format, "the trellis", trellis, *trellis_bytes));
  ESPALIER_CHECK(check_part(format, "the input scale (suh)", suh, 2 * stored_cols));
  ESPALIER_CHECK(check_part(format, "the output scale (svh)", svh, 2 * stored_rows));
  return Matrix{.format = &format,
                .rows = rows,
                .cols = cols,
                .data = trellis,
                .input_scale = suh,
                .output_scale = svh};
}

std::vector<std::byte> exl3_signs(Bytes bitmap) {
  std::vector<std::byte> halves(bitmap.size() * 16);
  for (std::size_t i = 0; i < bitmap.size() * 8; ++i) {
    const bool negative = (std::to_integer<unsigned>(bitmap[i / 8]) >> i % 8 & 1) != 0;
    const std::uint16_t half = negative ? 0xbc00 : 0x3c00;
    std::memcpy(halves.data() + 2 * i, &half, 2);
  }
  return halves;
}

Matrix exl3_inner(const Matrix& matrix) {
  return {.format = matrix.format,
          .rows = exl3_padded(matrix.rows),
          .cols = exl3_padded(matrix.cols),
          .data = matrix.data};
}

void exl3_rotate_input(const Matrix& matrix, const float* x, float* rotated) {
  for (std::uint64_t k = 0; k < exl3_padded(matrix.cols); ++k) {
    const float scale = half_to_float(load<std::uint16_t>(matrix.input_scale.data() + 2 * k));
    rotated[k] = k < matrix.cols ? x[k] * scale : 0.0f;
  }
  for (std::uint64_t k = 0; k < matrix.cols; k += kExl3Run) hadamard_128(rotated + k);
}

void exl3_rotate_output(const Matrix& matrix, float* y) {
  for (std::uint64_t n = 0; n < matrix.rows; n += kExl3Run) hadamard_128(y + n);
  for (std::uint64_t n = 0; n < matrix.rows; ++n) {
    y[n] *= half_to_float(load<std::uint16_t>(matrix.output_scale.data() + 2 * n));
  }
}

Result<Matrix> exl3_embedding_matrix(const Format& format, std::uint64_t rows, std::uint64_t cols,
                                     Bytes trellis, Bytes signs) {
  const std::uint64_t rings = cols / 256 + (cols % 256 != 0 ? 1 : 0);
  const auto row_bytes = checked_mul(rings, format.block_bytes);
  const auto bytes = row_bytes ? checked_mul(rows, *row_bytes) : std::nullopt;
  if (!bytes) {
    return input_error("{}: {} rows × {} columns overflow a size", format.name, rows, cols);
  }
  ESPALIER_CHECK(check_part(format, "the trellis", trellis, *bytes));
  ESPALIER_CHECK(check_part(format, "the signs", signs, rings * 512));
  return Matrix{.format = &format, .rows = rows, .cols = cols, .data = trellis, .scales = signs};
}

Result<Matrix> exl3_ngram_matrix(const Format& format, std::uint64_t rows, Bytes trellis,
                                 Bytes head_bias, Bytes head_offsets) {
  const auto bytes = checked_mul(rows, format.block_bytes);
  if (!bytes) return input_error("{}: {} rows overflow a size", format.name, rows);
  ESPALIER_CHECK(check_part(format, "the trellis", trellis, *bytes));
  const std::uint64_t heads = head_offsets.size() / 8;
  ESPALIER_CHECK(check_part(format, "the list of head offsets", head_offsets, heads * 8));
  ESPALIER_CHECK(check_part(format, "the head bias", head_bias, heads * 2 * kExl3NgramDim));
  std::uint64_t previous = 0;
  for (std::uint64_t head = 0; head < heads; ++head) {
    const auto offset = load<std::uint64_t>(head_offsets.data() + 8 * head);
    if (offset < previous || offset > rows || (head == 0 && offset != 0)) {
      return input_error("{}: head {} begins at row {}, expected {} … {}", format.name, head,
                         offset, previous, head == 0 ? 0 : rows);
    }
    previous = offset;
  }
  return Matrix{.format = &format,
                .rows = rows,
                .cols = kExl3NgramDim,
                .data = trellis,
                .zeros = head_bias,
                .head_offsets = head_offsets};
}

}  // namespace espalier::pack
