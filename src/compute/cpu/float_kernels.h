// Products with weights that are floats already: F32 as it lies in the file, F16 and BF16 widened,
// and every format without a kernel of its own, decoded by its definition.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier::cpu {

struct FloatKernels {
  // y[r·y_stride + o] = x[r] · w[o] for x [rows, inputs], w [outputs, inputs]. A sum has one
  // partial sum per lane, in the order of the inputs; the inputs that do not fill a vector come
  // last.
  void (*multiply)(const float* x, std::size_t rows, const float* w, std::size_t outputs,
                   std::size_t inputs, float* y, std::size_t y_stride);

  // Widens `count` 16-bit numbers at `from`, exactly.
  void (*widen_half)(const std::byte* from, std::size_t count, float* to);
  void (*widen_bfloat)(const std::byte* from, std::size_t count, float* to);
};

// Those of the best instruction set of this machine.
[[nodiscard]] const FloatKernels& float_kernels();

}  // namespace espalier::cpu
