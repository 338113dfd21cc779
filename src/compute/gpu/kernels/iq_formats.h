// GGUF's formats whose codes are points of a grid. pack/iq_quants.h says what lies where.
#pragma once

#include "compute/gpu/kernels/weights.h"

namespace espalier::gpu::ESPALIER_DIALECT {

using Grid16 = Global<const uint16_t>;

// Whether value j of eight is negative, by a sign byte of which seven bits are stored.
ESPALIER_DEVICE bool even_sign(uint32_t bits, uint32_t j) {
  bits &= 127;
  if (j < 7) return (bits >> j & 1) != 0;
  bits ^= bits >> 4;
  bits ^= bits >> 2;
  bits ^= bits >> 1;
  return (bits & 1) != 0;
}

ESPALIER_DEVICE float with_sign(float magnitude, bool negative) {
  return negative ? -magnitude : magnitude;
}

// Value j of a point of IQ1, IQ2 and the two IQ3.
ESPALIER_DEVICE float iq1_value(uint32_t point, uint32_t j, float scale, bool negative_shift) {
  const float digit = centered(point >> (2 * j) & 3, 1);
  return scale * (digit + (negative_shift ? -0.125f : 0.125f));
}
ESPALIER_DEVICE float iq2_level(uint32_t point, uint32_t j) {
  return centered(0x2b1908u >> (8 * (point >> (2 * j) & 3)) & 255, 0);  // 8, 25, 43
}
ESPALIER_DEVICE float iq3_xxs_level(uint32_t point, uint32_t j) {
  const uint32_t digit = point >> (3 * j) & 7;
  return centered(digit == 7 ? 62 : 4 + 8 * digit, 0);
}
ESPALIER_DEVICE float iq3_s_level(uint32_t point, uint32_t j) {
  return centered(1 + 2 * (point >> (3 * j) & 7), 0);
}

// The scales of groups with the code s.
ESPALIER_DEVICE float odd_scale(float scale, uint32_t s) { return scale * centered(2 * s + 1, 0); }
ESPALIER_DEVICE float iq2_scale(float scale, uint32_t s) {
  return scale * (0.5f + centered(s, 0)) * 0.25f;
}

struct IQ1_S {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 50;
  static ESPALIER_DEVICE float value(Codes block, uint32_t v, Grid16 grid) {
    const uint32_t k = v / 8;
    const uint32_t word = read16(block + (34 + v / 32 * 2));
    const uint32_t index = block[2 + k] | (word >> (k % 4 * 3) & 7) << 8;
    return iq1_value(grid[index], v % 8, odd_scale(half_at(block), word >> 12 & 7),
                     (word & 0x8000) != 0);
  }
};
struct IQ1_M {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 56;
  static ESPALIER_DEVICE float value(Codes block, uint32_t v, Grid16 grid) {
    const Codes scales = block + 48;
    uint32_t scale = 0;  // an F16, spread over the top nibbles of four words
    for (uint32_t i = 0; i < 4; ++i) scale |= read16(scales + 2 * i) >> 12 << (4 * i);
    const uint32_t k = v / 8;
    const uint32_t s = read16(scales + v / 64 * 2) >> (k % 8 / 2 * 3) & 7;
    const uint32_t top = nibble(block + 32, k);
    return iq1_value(grid[block[k] | (top & 7) << 8], v % 8,
                     odd_scale(half_to_float(static_cast<uint16_t>(scale)), s), (top & 8) != 0);
  }
};
struct IQ2_XXS {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 66;
  static ESPALIER_DEVICE float value(Codes block, uint32_t v, Grid16 grid) {
    const Codes group = block + (2 + v / 32 * 8);
    const uint32_t k = v % 32 / 8;
    const uint32_t word = read32(group + 4);
    const float magnitude =
        iq2_scale(half_at(block), word >> 28) * iq2_level(grid[group[k]], v % 8);
    return with_sign(magnitude, even_sign(word >> (7 * k), v % 8));
  }
};
struct IQ2_XS {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 74;
  static ESPALIER_DEVICE float value(Codes block, uint32_t v, Grid16 grid) {
    const uint32_t code = read16(block + (2 + v / 8 * 2));
    const float scale = iq2_scale(half_at(block), nibble(block + 66, v / 16));
    return with_sign(scale * iq2_level(grid[code & 511], v % 8), even_sign(code >> 9, v % 8));
  }
};
struct IQ2_S {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 82;
  static ESPALIER_DEVICE float value(Codes block, uint32_t v, Grid16 grid) {
    const uint32_t k = v / 8;
    const uint32_t index = block[2 + k] | two_bits(block + 66, k) << 8;
    const float scale = iq2_scale(half_at(block), nibble(block + 74, v / 16));
    return with_sign(scale * iq2_level(grid[index], v % 8), one_bit(block + 34, v) != 0);
  }
};
struct IQ3_XXS {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 98;
  static ESPALIER_DEVICE float value(Codes block, uint32_t v, Grid16 grid) {
    const uint32_t word = read32(block + (66 + v / 32 * 4));
    const float scale = half_at(block) * (0.5f + centered(word >> 28, 0)) * 0.5f;
    const float magnitude = scale * iq3_xxs_level(grid[block[2 + v / 4]], v % 4);
    return with_sign(magnitude, even_sign(word >> (v % 32 / 8 * 7), v % 8));
  }
};
struct IQ3_S {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 110;
  static ESPALIER_DEVICE float value(Codes block, uint32_t v, Grid16 grid) {
    const uint32_t k = v / 4;
    const uint32_t index = block[2 + k] | one_bit(block + 66, k) << 8;
    const float scale = odd_scale(half_at(block), nibble(block + 106, v / 32));
    return with_sign(scale * iq3_s_level(grid[index], v % 4), one_bit(block + 74, v) != 0);
  }
};

}  // namespace espalier::gpu::ESPALIER_DIALECT
