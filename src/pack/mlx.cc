#include "pack/mlx.h"

#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "pack/scales.h"
#include "pack/small_floats.h"

namespace espalier::pack {
namespace {

void store_scale(ScaleType type, float value, std::byte* to) {
  const std::uint16_t bits =
      type == ScaleType::kF16 ? float_to_half(value) : float_to_bfloat(value);
  if (type == ScaleType::kF32) {
    std::memcpy(to, &value, sizeof(value));
  } else {
    std::memcpy(to, &bits, sizeof(bits));
  }
}

// `value` as a number of that type.
float rounded(ScaleType type, float value) {
  std::byte bytes[4];
  store_scale(type, value, bytes);
  return load_scale(type, bytes);
}

// Code `index` of a row's bit stream. A code has at most 8 bits, so it lies in one or two bytes.
unsigned read_code(const std::byte* row, std::uint64_t index, std::uint32_t bits) {
  const std::uint64_t bit = index * bits;
  const std::byte* from = row + bit / 8;
  const unsigned shift = bit % 8;
  unsigned window = std::to_integer<unsigned>(from[0]) >> shift;
  if (shift + bits > 8) window |= std::to_integer<unsigned>(from[1]) << (8 - shift);
  return window & ((1u << bits) - 1);
}

// The one loop of all decoders: group_decoder(g), with g counting the groups of the whole matrix,
// gives the function from a code of that group to its value.
template <typename GroupDecoder>
void decode_groups(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out,
                   GroupDecoder group_decoder) {
  const std::uint32_t bits = mlx_code_bits(*matrix.format);
  const std::uint32_t group = matrix.format->block_values;
  const std::uint64_t groups = matrix.cols / group;
  for (std::uint64_t row = first; row < first + count; ++row) {
    const std::byte* codes = matrix.data.data() + row * groups * matrix.format->block_bytes;
    for (std::uint64_t g = 0; g < groups; ++g) {
      const auto decode = group_decoder(row * groups + g);
      for (std::uint64_t c = g * group; c < (g + 1) * group; ++c) {
        *out++ = decode(read_code(codes, c, bits));
      }
    }
  }
}

Status check_values(const Format& format, std::span<const float> values, std::uint64_t rows,
                    std::uint64_t cols) {
  const auto size = checked_mul(rows, cols);
  if (!size || *size != values.size()) {
    return input_error("{}: {} values given for {} rows × {} columns", format.name, values.size(),
                       rows, cols);
  }
  if (cols % format.block_values != 0) {
    return input_error("{}: {} columns do not fill whole groups of {}", format.name, cols,
                       format.block_values);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return input_error("{}: value {} of row {} is {}, expected a finite number", format.name,
                         i % cols, i / cols, values[i]);
    }
  }
  return {};
}

}  // namespace

void write_mlx_code(std::byte* row, std::uint64_t index, std::uint32_t bits, unsigned code) {
  const std::uint64_t bit = index * bits;
  const unsigned shift = bit % 8;
  row[bit / 8] |= static_cast<std::byte>(code << shift);
  if (shift + bits > 8) row[bit / 8 + 1] |= static_cast<std::byte>(code >> (8 - shift));
}

void decode_mlx_affine_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                            float* out) {
  const ScaleType type = matrix.scale_type;
  decode_groups(matrix, first, count, out, [&](std::uint64_t group) {
    const float scale = load_scale(type, matrix.scales.data() + group * scale_size(type));
    const float bias = load_scale(type, matrix.zeros.data() + group * scale_size(type));
    return [=](unsigned code) { return scale * static_cast<float>(code) + bias; };
  });
}

void dequantize_mlx_affine_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count,
                                float* out) {
  const ScaleType type = matrix.scale_type;
  decode_groups(matrix, first, count, out, [&](std::uint64_t group) {
    const float scale = load_scale(type, matrix.scales.data() + group * scale_size(type));
    const float bias = load_scale(type, matrix.zeros.data() + group * scale_size(type));
    return [=](unsigned code) {
      return rounded(type, rounded(type, scale * static_cast<float>(code)) + bias);
    };
  });
}

Result<PackedMatrix> encode_mlx_affine(const Format& format, std::span<const float> values,
                                       std::uint64_t rows, std::uint64_t cols,
                                       ScaleType scale_type) {
  ESPALIER_CHECK(check_values(format, values, rows, cols));
  const std::uint32_t bits = mlx_code_bits(format);
  const std::uint32_t group = format.block_values;
  const std::size_t groups = values.size() / group;
  const float top = static_cast<float>((1u << bits) - 1);
  PackedMatrix packed;
  packed.data.resize(groups * format.block_bytes);
  packed.scales.resize(groups * scale_size(scale_type));
  packed.zeros.resize(packed.scales.size());
  for (std::size_t g = 0; g < groups; ++g) {
    const std::span<const float> from = values.subspan(g * group, group);
    const auto [low, high] = std::minmax_element(from.begin(), from.end());
    float scale = std::max((*high - *low) / top, 1e-7f);
    float bias = *low;
    if (bits > 1) {
      // The end of the range that is farther from zero becomes the bias, exactly, and zero becomes
      // a code: that makes the scale negative whenever the high end is the farther one.
      const bool low_is_farther = std::abs(*low) > std::abs(*high);
      const float edge = low_is_farther ? *low : *high;
      if (!low_is_farther) scale = -scale;
      const float zero_code = std::rint(edge / scale);
      bias = zero_code == 0 ? 0 : edge;
      if (zero_code != 0) scale = edge / zero_code;
    }
    for (std::size_t i = 0; i < group; ++i) {
      const float code = std::clamp(std::rint((from[i] - bias) / scale), 0.0f, top);
      write_mlx_code(packed.data.data() + g * format.block_bytes, i, bits,
                     static_cast<unsigned>(code));
    }
    if (!std::isfinite(rounded(scale_type, scale)) || !std::isfinite(rounded(scale_type, bias))) {
      return input_error("{}: values {} … {} of row {} overflow the type of the scales",
                         format.name, *low, *high, g * group / cols);
    }
    store_scale(scale_type, scale, packed.scales.data() + g * scale_size(scale_type));
    store_scale(scale_type, bias, packed.zeros.data() + g * scale_size(scale_type));
  }
  ESPALIER_TRY(packed.view, mlx_matrix(format, rows, cols, packed.data, packed.scales, packed.zeros,
                                       scale_type));
  return packed;
}

Result<PackedMatrix> encode_mlx_affine_rows(const Format& format, std::span<const float> values,
                                            std::uint64_t rows, std::uint64_t cols) {
  return encode_mlx_affine(format, values, rows, cols, ScaleType::kBF16);
}

void decode_mxfp4_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out) {
  decode_groups(matrix, first, count, out, [&](std::uint64_t group) {
    const float scale = e8m0_to_float(std::to_integer<std::uint8_t>(matrix.scales[group]));
    return [=](unsigned code) { return e2m1_to_float(code) * scale; };
  });
}

void decode_mxfp8_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out) {
  decode_groups(matrix, first, count, out, [&](std::uint64_t group) {
    const float scale = e8m0_to_float(std::to_integer<std::uint8_t>(matrix.scales[group]));
    return [=](unsigned code) { return e4m3_to_float(static_cast<std::uint8_t>(code)) * scale; };
  });
}

void decode_nvfp4_rows(const Matrix& matrix, std::uint64_t first, std::uint64_t count, float* out) {
  decode_groups(matrix, first, count, out, [&](std::uint64_t group) {
    const float scale = e4m3_to_float(std::to_integer<std::uint8_t>(matrix.scales[group]));
    const float factor = scale * matrix.global_scale;
    return [=](unsigned code) { return e2m1_to_float(code) * factor; };
  });
}

namespace {

// The nearest E2M1 code; a tie goes to the smaller magnitude, and what rounds to zero to +0.
unsigned nearest_e2m1(float value) {
  const float magnitude = std::abs(value);
  unsigned code = 0;
  while (code < 7 && magnitude > (kE2M1Magnitudes[code] + kE2M1Magnitudes[code + 1]) / 2) {
    ++code;
  }
  return code != 0 && value < 0 ? code | 8 : code;
}

// A group's scale as stored, and what its values are divided by to become codes.
struct GroupScale {
  std::uint8_t code;
  float divisor;
};

// The smallest power of two that is not below `scale`, which has the precision of `type`. MLX gives
// a group of zeros the scale 1. What is below the smallest E8M0 scale gets that one; MLX's own
// conversion wraps around there, to huge scales.
GroupScale power_of_two_scale(float scale, ScaleType type) {
  if (scale == 0) return {127, 1};
  int exponent = 0;
  if (std::frexp(scale, &exponent) == 0.5f) --exponent;
  exponent = std::max(exponent, -127);
  return {static_cast<std::uint8_t>(exponent + 127), rounded(type, std::ldexp(1.0f, exponent))};
}

}  // namespace

Result<PackedMatrix> encode_mlx_float(const Format& format, std::span<const float> values,
                                      std::uint64_t rows, std::uint64_t cols, ScaleType value_type,
                                      std::optional<float> global_scale) {
  ESPALIER_CHECK(check_values(format, values, rows, cols));
  const std::uint32_t bits = mlx_code_bits(format);
  const std::uint32_t group = format.block_values;
  const bool nvfp4 = group == 16;
  if (global_scale && (!nvfp4 || !std::isfinite(*global_scale) || *global_scale <= 0)) {
    return input_error("{}: tensor scale {}, expected {}", format.name, *global_scale,
                       nvfp4 ? "a positive number" : "none: only nvfp4 has one");
  }
  const float encode_factor = global_scale ? 6 * 448.0f / *global_scale : 1.0f;
  const std::size_t groups = values.size() / group;
  PackedMatrix packed;
  packed.data.resize(groups * format.block_bytes);
  packed.scales.resize(groups);
  for (std::size_t g = 0; g < groups; ++g) {
    const std::span<const float> from = values.subspan(g * group, group);
    float largest = 0;
    for (const float value : from) {
      largest = std::max(largest, std::abs(rounded(value_type, value)));
    }
    if (largest >= 0x1p127f) {  // may round to 2^128; and F16 overflows to infinity before
      return input_error("{}: a value of row {} overflows when rounded", format.name,
                         g * group / cols);
    }
    const float scale = rounded(value_type, largest / (bits == 4 ? 6.0f : 448.0f));
    GroupScale stored{};
    if (nvfp4) {
      stored.code = float_to_e4m3(scale * encode_factor);
      stored.divisor = e4m3_to_float(stored.code);
    } else {
      stored = power_of_two_scale(scale, value_type);
    }
    packed.scales[g] = static_cast<std::byte>(stored.code);
    for (std::size_t i = 0; i < group && stored.divisor != 0; ++i) {
      const float value =
          rounded(value_type, rounded(value_type, from[i]) / stored.divisor) * encode_factor;
      write_mlx_code(packed.data.data() + g * format.block_bytes, i, bits,
                     bits == 4 ? nearest_e2m1(value) : float_to_e4m3(value));
    }
  }
  ESPALIER_TRY(packed.view,
               mlx_matrix(format, rows, cols, packed.data, packed.scales, {}, ScaleType::kF32));
  if (global_scale) packed.view.global_scale = nvfp4_factor(*global_scale);
  return packed;
}

Result<PackedMatrix> encode_mlx_float_rows(const Format& format, std::span<const float> values,
                                           std::uint64_t rows, std::uint64_t cols) {
  return encode_mlx_float(format, values, rows, cols, ScaleType::kF32, std::nullopt);
}

Result<Matrix> mlx_matrix(const Format& format, std::uint64_t rows, std::uint64_t cols, Bytes codes,
                          Bytes scales, Bytes biases, ScaleType scale_type) {
  const bool affine = format.decode_rows == decode_mlx_affine_rows;
  if (cols % format.block_values != 0) {
    return input_error("{}: {} columns do not fill whole groups of {}", format.name, cols,
                       format.block_values);
  }
  const auto groups = checked_mul(rows, cols / format.block_values);
  const auto code_bytes = groups ? checked_mul(*groups, format.block_bytes) : std::nullopt;
  if (!code_bytes) {
    return input_error("{}: {} rows × {} columns overflow a size", format.name, rows, cols);
  }
  // A group has no more bytes of scales than of codes, so that these products do not overflow.
  const std::uint64_t scale_bytes = *groups * (affine ? scale_size(scale_type) : 1);
  const std::uint64_t bias_bytes = affine ? scale_bytes : 0;
  if (codes.size() != *code_bytes || scales.size() != scale_bytes || biases.size() != bias_bytes) {
    return input_error(
        "a {} matrix of {} rows × {} columns has {} bytes of codes, {} of scales and {} of biases, "
        "found {}, {} and {}",
        format.name, rows, cols, *code_bytes, scale_bytes, bias_bytes, codes.size(), scales.size(),
        biases.size());
  }
  return Matrix{.format = &format,
                .rows = rows,
                .cols = cols,
                .data = codes,
                .scales = scales,
                .zeros = biases,
                .scale_type = scale_type};
}

}  // namespace espalier::pack
