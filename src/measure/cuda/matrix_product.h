// Dense matrix products by cuBLAS: what a GPU's matrix units reach, beside which products with many
// rows are put.
#pragma once

#include "base/result.h"
#include "compute/gpu/cuda/stream.h"
#include "measure/bench.h"

namespace espalier::measure {

enum class DenseType { kF16, kBF16 };

struct DenseProduct {
  DenseType type = DenseType::kF16;  // of both operands and the result; sums are floats
  std::uint64_t rows = 0, outputs = 0, inputs = 0;
};

// Seconds of one of `repeats` products of random numbers. cuBLAS is looked for when this is called;
// nothing else needs it. Errors: it is not there, or not enough memory.
[[nodiscard]] Result<Spread> time_dense_product(gpu::cuda::Stream& stream,
                                                const DenseProduct& product, int repeats);

}  // namespace espalier::measure
