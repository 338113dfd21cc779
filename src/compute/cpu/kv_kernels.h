// Writing keys and values to the cache in vectors: see compute/kv_codec.h, whose bytes these are.
#pragma once

#include <cstddef>

#include "compute/kv_view.h"

namespace espalier::cpu {

struct KvKernels {
  // compute::encode_kv.
  void (*encode)(compute::KvType type, const float* x, std::size_t head_dim, std::byte* to);

  // compute::rotate_kv.
  void (*rotate)(std::size_t size, float* x);
};

// Those of the best instruction set of this machine.
[[nodiscard]] const KvKernels& kv_kernels();

}  // namespace espalier::cpu
