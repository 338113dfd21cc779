// Reading packed weights: bytes to integers and numbers. No pointer is assumed to be aligned.
#pragma once

#include "compute/gpu/dialect/dialect.h"

namespace espalier::gpu::ESPALIER_DIALECT {

using Codes = Global<const uint8_t>;

ESPALIER_DEVICE uint32_t read16(Codes from) {
  return from[0] | static_cast<uint32_t>(from[1]) << 8;
}
ESPALIER_DEVICE uint32_t read32(Codes from) { return read16(from) | read16(from + 2) << 16; }

// Code `index` of a stream of codes of 1 to 8 bits.
ESPALIER_DEVICE uint32_t stream_code(Codes from, uint32_t index, uint32_t bits) {
  const uint64_t bit = static_cast<uint64_t>(index) * bits;
  const uint32_t shift = bit % 8;
  uint32_t window = from[bit / 8] >> shift;
  if (shift + bits > 8) window |= static_cast<uint32_t>(from[bit / 8 + 1]) << (8 - shift);
  return window & ((1u << bits) - 1);
}

ESPALIER_DEVICE float half_at(Codes from) {
  return half_to_float(static_cast<uint16_t>(read16(from)));
}

// Field i of an array of fields of 4, 2 or 1 bits, low bits first.
ESPALIER_DEVICE uint32_t nibble(Codes from, uint32_t i) { return from[i / 2] >> (i % 2 * 4) & 15; }
ESPALIER_DEVICE uint32_t two_bits(Codes from, uint32_t i) { return from[i / 4] >> (i % 4 * 2) & 3; }
ESPALIER_DEVICE uint32_t one_bit(Codes from, uint32_t i) { return from[i / 8] >> (i % 8) & 1; }

// code − zero, as a number.
ESPALIER_DEVICE float centered(uint32_t code, int32_t zero) {
  return static_cast<float>(static_cast<int32_t>(code) - zero);
}

ESPALIER_DEVICE float signed_byte(uint8_t byte) {
  return static_cast<float>(static_cast<int8_t>(byte));
}

// E2M1 twice as large, so that all are integers: 0, 1, 2, 3, 4, 6, 8, 12, a nibble each.
ESPALIER_DEVICE float doubled_e2m1(uint32_t code) {
  const float magnitude = static_cast<float>(0xc8643210u >> (4 * (code & 7)) & 15);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// E4M3 without its sign; NaN (0x7f) reads as 480. Made of normal numbers only, because some GPUs
// take subnormal ones for zero.
ESPALIER_DEVICE float e4m3_magnitude(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15;
  const uint32_t mantissa = code & 7;
  if (exponent == 0) return static_cast<float>(mantissa) * 0.001953125f;  // 2⁻⁹
  return float_of((exponent + 120) << 23 | mantissa << 20);
}

ESPALIER_DEVICE float not_a_number() { return float_of(0x7fc00000u); }

}  // namespace espalier::gpu::ESPALIER_DIALECT
