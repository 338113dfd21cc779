// What a build without CUDA finds.
#include "compute/gpu/devices.h"

namespace espalier::gpu {

Devices find_devices() {
  return {.list = {},
          .problem = "this build has no CUDA: nvcc was not there, or ESPALIER_CUDA was OFF"};
}

}  // namespace espalier::gpu
