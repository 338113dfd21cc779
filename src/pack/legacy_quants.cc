#include "pack/legacy_quants.h"

namespace espalier::pack {

void BlockQ4_0::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((codes[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((codes[i] >> 4) - 8);
  }
}

void BlockQ4_1::decode(float* out) const {
  const float d = half_to_float(scale);
  const float m = half_to_float(minimum);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(codes[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(codes[i] >> 4) + m;
  }
}

void BlockQ8_0::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(codes[i]);
}

}  // namespace espalier::pack
