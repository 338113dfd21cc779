#include "pack/k_quants.h"

namespace espalier::pack {

void BlockQ6_K::decode(float* out) const {
  const float d = half_to_float(scale);
  for (int v = 0; v < kValues; ++v) {
    const int half = v / 128;
    const int quarter = v % 128 / 32;
    const int l = v % 32;
    const int low_bits = low[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
    const int high_bits = high[half * 32 + l] >> (2 * quarter) & 3;
    const float group_scale = d * static_cast<float>(scales[v / 16]);
    out[v] = group_scale * static_cast<float>((low_bits | high_bits << 4) - 32);
  }
}

}  // namespace espalier::pack
