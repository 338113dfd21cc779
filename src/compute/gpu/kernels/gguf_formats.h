// GGUF's block formats but those with grids. The structs of the same names in pack/ say what lies
// where; the numbers here are offsets into them. code() is the bits of a value as they are stored.
#pragma once

#include "compute/gpu/kernels/weights.h"

namespace espalier::gpu::ESPALIER_DIALECT {

// --- Plain numbers -------------------------------------------------------------------------------

struct PlainF32 {
  static ESPALIER_CONSTANT uint32_t kValues = 1, kBytes = 4;
  static ESPALIER_DEVICE float value(Codes block, uint32_t) { return float_of(read32(block)); }
};
struct PlainF16 {
  static ESPALIER_CONSTANT uint32_t kValues = 1, kBytes = 2;
  static ESPALIER_DEVICE float value(Codes block, uint32_t) { return half_at(block); }
};
struct PlainBF16 {
  static ESPALIER_CONSTANT uint32_t kValues = 1, kBytes = 2;
  static ESPALIER_DEVICE float value(Codes block, uint32_t) {
    return float_of(read16(block) << 16);
  }
};

// Stored as their transpose: pack/transposed.h.
template <typename Block>
struct Transposed {
  static ESPALIER_DEVICE float weight(Arguments<Weights> w, uint32_t row, uint32_t col) {
    return Block::value(w.data + (static_cast<uint64_t>(col) * w.rows + row) * Block::kBytes, 0);
  }
};

// --- Q4_0 to Q8_0: pack/legacy_quants.h
// -----------------------------------------------------------

// Value v of 32 whose nibbles lie as in Q4_0.
ESPALIER_DEVICE uint32_t halves_nibble(Codes codes, uint32_t v) {
  return codes[v % 16] >> (v / 16 * 4) & 15;
}

struct Q4_0 {
  static ESPALIER_CONSTANT uint32_t kValues = 32, kBytes = 18;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return halves_nibble(block + 2, v);
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return half_at(block) * centered(code(block, v), 8);
  }
};
struct Q4_1 {
  static ESPALIER_CONSTANT uint32_t kValues = 32, kBytes = 20;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return halves_nibble(block + 4, v);
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return half_at(block) * centered(code(block, v), 0) + half_at(block + 2);
  }
};
struct Q5_0 {
  static ESPALIER_CONSTANT uint32_t kValues = 32, kBytes = 22;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return halves_nibble(block + 6, v) | one_bit(block + 2, v) << 4;
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return half_at(block) * centered(code(block, v), 16);
  }
};
struct Q5_1 {
  static ESPALIER_CONSTANT uint32_t kValues = 32, kBytes = 24;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return halves_nibble(block + 8, v) | one_bit(block + 4, v) << 4;
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return half_at(block) * centered(code(block, v), 0) + half_at(block + 2);
  }
};
struct Q8_0 {
  static ESPALIER_CONSTANT uint32_t kValues = 32, kBytes = 34;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) { return block[2 + v]; }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return half_at(block) * signed_byte(static_cast<uint8_t>(code(block, v)));
  }
};

// --- K-quants: pack/k_quants.h
// --------------------------------------------------------------------

// The two-bit field of value v in the layout of Q2_K, Q3_K and TQ2_0.
ESPALIER_DEVICE uint32_t k_two_bits(Codes codes, uint32_t v) {
  return codes[v / 128 * 32 + v % 32] >> (v % 128 / 32 * 2) & 3;
}
// The nibble of value v in the layout of Q4_K and Q5_K.
ESPALIER_DEVICE uint32_t k_nibble(Codes codes, uint32_t v) {
  return codes[v / 64 * 32 + v % 32] >> (v % 64 / 32 * 4) & 15;
}
// The bit of value v that Q3_K and Q5_K keep apart.
ESPALIER_DEVICE uint32_t k_high_bit(Codes high, uint32_t v) { return high[v % 32] >> (v / 32) & 1; }

struct Q2_K {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 84;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return k_two_bits(block + 16, v);
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    const uint32_t group = block[v / 16];
    const float scale = half_at(block + 80) * centered(group & 15, 0);
    const float minimum = half_at(block + 82) * centered(group >> 4, 0);
    return scale * centered(code(block, v), 0) - minimum;
  }
};
struct Q3_K {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 110;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return k_two_bits(block + 32, v) | k_high_bit(block, v) << 2;
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    const Codes scales = block + 96;
    const uint32_t g = v / 16;
    const uint32_t group =
        (scales[g % 8] >> (g / 8 * 4) & 15) | (scales[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
    return half_at(block + 108) * centered(group, 32) * centered(code(block, v), 4);
  }
};

// scale · (group's scale code) · code − minimum · (group's minimum code), of Q4_K and Q5_K.
ESPALIER_DEVICE float k_with_minimum(Codes block, uint32_t g, uint32_t code) {
  const Codes scales = block + 4;
  const uint32_t first = scales[g % 4];
  const uint32_t second = scales[g % 4 + 4];
  const uint32_t third = scales[g % 4 + 8];
  const uint32_t scale_code = g < 4 ? first & 63 : (third & 15) | first >> 6 << 4;
  const uint32_t minimum_code = g < 4 ? second & 63 : third >> 4 | second >> 6 << 4;
  const float scale = half_at(block) * centered(scale_code, 0);
  const float minimum = half_at(block + 2) * centered(minimum_code, 0);
  return scale * centered(code, 0) - minimum;
}

struct Q4_K {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 144;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) { return k_nibble(block + 16, v); }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return k_with_minimum(block, v / 32, code(block, v));
  }
};
struct Q5_K {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 176;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return k_nibble(block + 48, v) | k_high_bit(block + 16, v) << 4;
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return k_with_minimum(block, v / 32, code(block, v));
  }
};
struct Q6_K {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 210;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    const uint32_t half = v / 128;
    const uint32_t quarter = v % 128 / 32;
    const uint32_t low = block[half * 64 + quarter % 2 * 32 + v % 32] >> (quarter / 2 * 4) & 15;
    const uint32_t high = block[128 + half * 32 + v % 32] >> (2 * quarter) & 3;
    return low | high << 4;
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return half_at(block + 208) * signed_byte(block[192 + v / 16]) * centered(code(block, v), 32);
  }
};
struct Q8_K {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 292;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) { return block[4 + v]; }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return float_of(read32(block)) * signed_byte(static_cast<uint8_t>(code(block, v)));
  }
};

// --- One and two bits: pack/low_bit_quants.h
// ------------------------------------------------------

struct Q1_0 {
  static ESPALIER_CONSTANT uint32_t kValues = 128, kBytes = 18;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) { return one_bit(block + 2, v); }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    const float scale = half_at(block);
    return code(block, v) != 0 ? scale : -scale;
  }
};
struct Q2_0 {
  static ESPALIER_CONSTANT uint32_t kValues = 64, kBytes = 18;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) { return two_bits(block + 2, v); }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return half_at(block) * centered(code(block, v), 1);
  }
};
struct TQ1_0 {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 54;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    uint32_t byte = v % 32;
    uint32_t trit = v / 32;
    if (v >= 160) {
      byte = 32 + v % 16;
      trit = (v - 160) / 16;
    }
    if (v >= 240) {
      byte = 48 + v % 4;
      trit = (v - 240) / 4;
    }
    const uint32_t power = trit == 4 ? 81 : 0x1b090301u >> (8 * trit) & 255;  // of 3
    return (block[byte] * power & 255) * 3 >> 8;
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return half_at(block + 52) * centered(code(block, v), 1);
  }
};
struct TQ2_0 {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 66;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) { return k_two_bits(block, v); }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return half_at(block + 64) * centered(code(block, v), 1);
  }
};

// --- Micro-scaling: pack/micro_scaling.h
// ----------------------------------------------------------

struct MXFP4 {
  static ESPALIER_CONSTANT uint32_t kValues = 32, kBytes = 17;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return halves_nibble(block + 1, v);
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    const uint32_t exponent = block[0];
    const float half_scale =
        float_of(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    return half_scale * doubled_e2m1(code(block, v));
  }
};
struct NVFP4 {
  static ESPALIER_CONSTANT uint32_t kValues = 64, kBytes = 36;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return block[4 + v / 16 * 8 + v % 8] >> (v % 16 / 8 * 4) & 15;
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    const uint32_t scale = block[v / 16] & 127;
    return (scale == 127 ? 0 : e4m3_magnitude(scale) / 2) * doubled_e2m1(code(block, v));
  }
};

// --- IQ4: pack/iq_quants.h
// ------------------------------------------------------------------------

// pack::kIq4Levels, a byte each.
ESPALIER_DEVICE float iq4_level(uint32_t code) {
  const uint64_t levels = code < 8 ? 0xf6eaddcfbfad9881u : 0x7159453526190d01u;
  return signed_byte(static_cast<uint8_t>(levels >> (code % 8 * 8)));
}

struct IQ4_NL {
  static ESPALIER_CONSTANT uint32_t kValues = 32, kBytes = 18;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return halves_nibble(block + 2, v);
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    return half_at(block) * iq4_level(code(block, v));
  }
};
struct IQ4_XS {
  static ESPALIER_CONSTANT uint32_t kValues = 256, kBytes = 136;
  static ESPALIER_DEVICE uint32_t code(Codes block, uint32_t v) {
    return halves_nibble(block + (8 + v / 32 * 16), v % 32);
  }
  static ESPALIER_DEVICE float value(Codes block, uint32_t v) {
    const uint32_t g = v / 32;
    const uint32_t group = nibble(block + 4, g) | two_bits(block + 2, g) << 4;
    return half_at(block) * centered(group, 32) * iq4_level(code(block, v));
  }
};

}  // namespace espalier::gpu::ESPALIER_DIALECT
