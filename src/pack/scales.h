// The scales that formats keep beside their codes, read as floats.
#pragma once

#include "base/half.h"
#include "pack/matrix.h"

namespace espalier::pack {

// Bytes of one scale.
[[nodiscard]] inline std::size_t scale_size(ScaleType type) {
  return type == ScaleType::kF32 ? 4 : 2;
}

// The scale at `from`; exact.
[[nodiscard]] inline float load_scale(ScaleType type, const std::byte* from) {
  switch (type) {
    case ScaleType::kF16:
      return half_to_float(load<std::uint16_t>(from));
    case ScaleType::kBF16:
      return bfloat_to_float(load<std::uint16_t>(from));
    case ScaleType::kF32:
      break;
  }
  return load<float>(from);
}

}  // namespace espalier::pack
