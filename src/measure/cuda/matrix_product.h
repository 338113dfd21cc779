// The operations a second that a GPU's matrix units reach: a ceiling for products with many rows.
#pragma once

#include "base/result.h"
#include "compute/gpu/cuda/stream.h"

namespace espalier::measure {

// Of cuBLAS on an 8192 × 8192 × 8192 product of random bfloat16 numbers, the best of several.
// cuBLAS is looked for when this is called; nothing else needs it. Errors: it is not there.
[[nodiscard]] Result<double> matrix_product_rate(gpu::cuda::Stream& stream);

}  // namespace espalier::measure
