// The formats of Hugging Face directories that keep codes and scales apart: MLX (pack/mlx.h) and
// the 4-bit integers of GPTQ, AWQ and compressed-tensors (pack/grouped_int4.h).
#pragma once

#include "compute/gpu/kernels/weights.h"

namespace espalier::gpu::ESPALIER_DIALECT {

// --- MLX
// ------------------------------------------------------------------------------------------

// The code of a weight: a row is one stream of bits.
ESPALIER_DEVICE uint32_t mlx_code(Arguments<Weights> w, uint32_t row, uint32_t col) {
  const uint32_t bits = w.block_bytes * 8 / w.block_values;
  const uint64_t row_bytes = static_cast<uint64_t>(w.cols / w.block_values) * w.block_bytes;
  return stream_code(w.data + row * row_bytes, col, bits);
}

ESPALIER_DEVICE uint64_t mlx_group(Arguments<Weights> w, uint32_t row, uint32_t col) {
  return static_cast<uint64_t>(row) * (w.cols / w.block_values) + col / w.block_values;
}

struct MlxGroup {
  float scale, bias;
};

// MLX's formats say what a group has, and what a code of it becomes.
template <typename Format>
struct MlxWeights {
  static ESPALIER_DEVICE float weight(Arguments<Weights> w, uint32_t row, uint32_t col) {
    return Format::value(Format::group(w, mlx_group(w, row, col)), mlx_code(w, row, col));
  }
};

struct MlxAffine : MlxWeights<MlxAffine> {
  static ESPALIER_DEVICE MlxGroup group(Arguments<Weights> w, uint64_t index) {
    return {scale_at(w.scales, w.scale_type, index), scale_at(w.zeros, w.scale_type, index)};
  }
  static ESPALIER_DEVICE float value(MlxGroup group, uint32_t code) {
    return group.scale * centered(code, 0) + group.bias;
  }
};

ESPALIER_DEVICE float e8m0(uint32_t code) {
  if (code == 255) return not_a_number();
  return float_of(code == 0 ? 0x00400000u : code << 23);  // 2⁻¹²⁷ is subnormal
}
ESPALIER_DEVICE float e4m3(uint32_t code) {
  if ((code & 127) == 127) return not_a_number();
  const float magnitude = e4m3_magnitude(code);
  return (code & 128) != 0 ? -magnitude : magnitude;
}
ESPALIER_DEVICE float e2m1(uint32_t code) { return doubled_e2m1(code) / 2; }

struct MlxMxfp4 : MlxWeights<MlxMxfp4> {
  static ESPALIER_DEVICE MlxGroup group(Arguments<Weights> w, uint64_t index) {
    return {e8m0(w.scales[index]), 0};
  }
  static ESPALIER_DEVICE float value(MlxGroup group, uint32_t code) {
    return e2m1(code) * group.scale;
  }
};
struct MlxMxfp8 : MlxWeights<MlxMxfp8> {
  static ESPALIER_DEVICE MlxGroup group(Arguments<Weights> w, uint64_t index) {
    return {e8m0(w.scales[index]), 0};
  }
  static ESPALIER_DEVICE float value(MlxGroup group, uint32_t code) {
    return e4m3(code) * group.scale;
  }
};
struct MlxNvfp4 : MlxWeights<MlxNvfp4> {
  static ESPALIER_DEVICE MlxGroup group(Arguments<Weights> w, uint64_t index) {
    return {e4m3(w.scales[index]) * w.global_scale, 0};
  }
  static ESPALIER_DEVICE float value(MlxGroup group, uint32_t code) {
    return e2m1(code) * group.scale;
  }
};

// --- 4-bit integers
// -------------------------------------------------------------------------------

// Nibble i of word `index`.
ESPALIER_DEVICE uint32_t word_nibble(Codes words, uint64_t index, uint32_t i) {
  return words[index * 4 + i / 2] >> (i % 2 * 4) & 15;
}

// Which nibble of an AWQ word holds output 8j + i: 0, 4, 1, 5, 2, 6, 3, 7.
ESPALIER_DEVICE uint32_t awq_nibble(uint32_t i) { return i / 2 + i % 2 * 4; }

ESPALIER_DEVICE uint32_t int4_group(Arguments<Weights> w, uint32_t col) {
  if (w.input_group != nullptr) return read32(w.input_group + static_cast<uint64_t>(col) * 4);
  return col / w.block_values;
}

// Word of the zero point of output `row` in formats that keep groups in rows of outputs.
ESPALIER_DEVICE uint64_t zero_word(Arguments<Weights> w, uint32_t group, uint32_t row) {
  return static_cast<uint64_t>(group) * (w.rows / 8) + row / 8;
}

// Their formats say where a group of an output has its scale and zero point, and a weight its code.
template <typename Format>
struct Int4Weights {
  static ESPALIER_DEVICE float weight(Arguments<Weights> w, uint32_t row, uint32_t col) {
    const uint32_t group = int4_group(w, col);
    return Format::scale(w, row, group) *
           centered(Format::code(w, row, col), static_cast<int32_t>(Format::zero(w, row, group)));
  }
};

// Scales in rows of outputs.
ESPALIER_DEVICE float scale_by_group(Arguments<Weights> w, uint32_t row, uint32_t group) {
  return scale_at(w.scales, w.scale_type, static_cast<uint64_t>(group) * w.rows + row);
}

// kAdd is added to stored zero points: 0x11111111 in version 1, which makes them one larger.
template <uint32_t kAdd>
struct Gptq : Int4Weights<Gptq<kAdd>> {
  static ESPALIER_DEVICE float scale(Arguments<Weights> w, uint32_t row, uint32_t group) {
    return scale_by_group(w, row, group);
  }
  static ESPALIER_DEVICE uint32_t zero(Arguments<Weights> w, uint32_t row, uint32_t group) {
    const uint32_t zeros = read32(w.zeros + zero_word(w, group, row) * 4) + kAdd;
    return zeros >> (row % 8 * 4) & 15;
  }
  static ESPALIER_DEVICE uint32_t code(Arguments<Weights> w, uint32_t row, uint32_t col) {
    return word_nibble(w.data, static_cast<uint64_t>(col / 8) * w.rows + row, col % 8);
  }
};
struct Awq : Int4Weights<Awq> {
  static ESPALIER_DEVICE float scale(Arguments<Weights> w, uint32_t row, uint32_t group) {
    return scale_by_group(w, row, group);
  }
  static ESPALIER_DEVICE uint32_t zero(Arguments<Weights> w, uint32_t row, uint32_t group) {
    return word_nibble(w.zeros, zero_word(w, group, row), awq_nibble(row % 8));
  }
  static ESPALIER_DEVICE uint32_t code(Arguments<Weights> w, uint32_t row, uint32_t col) {
    const uint64_t word = static_cast<uint64_t>(col) * (w.rows / 8) + row / 8;
    return word_nibble(w.data, word, awq_nibble(row % 8));
  }
};

// Compressed-tensors; without stored zero points they are 8.
struct CompressedInt4 : Int4Weights<CompressedInt4> {
  static ESPALIER_DEVICE float scale(Arguments<Weights> w, uint32_t row, uint32_t group) {
    const uint32_t groups = w.cols / w.block_values;
    return scale_at(w.scales, w.scale_type, static_cast<uint64_t>(row) * groups + group);
  }
  static ESPALIER_DEVICE uint32_t zero(Arguments<Weights> w, uint32_t row, uint32_t group) {
    if (w.zeros == nullptr) return 8;
    const uint32_t groups = w.cols / w.block_values;
    return word_nibble(w.zeros, static_cast<uint64_t>(row / 8) * groups + group, row % 8);
  }
  static ESPALIER_DEVICE uint32_t code(Arguments<Weights> w, uint32_t row, uint32_t col) {
    return word_nibble(w.data, static_cast<uint64_t>(row) * (w.cols / 8) + col / 8, col % 8);
  }
};

}  // namespace espalier::gpu::ESPALIER_DIALECT
