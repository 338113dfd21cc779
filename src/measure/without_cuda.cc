// What a build without CUDA times on GPUs.
#include "measure/gpu_bench.h"

namespace espalier::measure {

Result<GpuBench> bench_gpu(const GpuBenchOptions& options) {
  const auto device = gpu::choose_device(gpu::find_devices(), options.device);
  return device.error();  // there is none
}

}  // namespace espalier::measure
