// Choosing the GPU that a thread works with.
#pragma once

#include "compute/gpu/devices.h"

namespace espalier::gpu::cuda {

// All that this thread does with CUDA from now on is on that device. Errors: as choose_device.
[[nodiscard]] Result<Device> use_device(int index);

}  // namespace espalier::gpu::cuda
