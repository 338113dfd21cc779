// The Sylvester Hadamard transform, divided by √size: orthonormal, symmetric, its own inverse.
#pragma once

#include <cmath>

namespace espalier::pack {

// Transforms `values` [size] in place; size is a power of two. The order of the sums is fixed:
// stages of stride 1, 2, 4, …, then one multiplication by 1/√size.
template <int kSize, typename Real>
void hadamard(Real* values) {
  static_assert(kSize > 0 && (kSize & (kSize - 1)) == 0);
  for (int stride = 1; stride < kSize; stride *= 2) {
    for (int i = 0; i < kSize; ++i) {
      if ((i & stride) != 0) continue;
      const Real a = values[i];
      const Real b = values[i + stride];
      values[i] = a + b;
      values[i + stride] = a - b;
    }
  }
  const Real scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(kSize)));
  for (int i = 0; i < kSize; ++i) values[i] *= scale;
}

// The rotation of EXL3's weight matrices.
inline void hadamard_128(float* values) { hadamard<128>(values); }

}  // namespace espalier::pack
