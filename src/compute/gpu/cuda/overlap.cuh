// Kernels of a stream that overlap: one that was launched with programmatic stream serialization
// may start before the one before it has ended.
#pragma once

#include <utility>

#include "compute/gpu/cuda/error.h"

namespace espalier::gpu::cuda {

// What a kernel does before it reads what the one before it wrote, or writes what that one reads.
__device__ inline void wait_for_the_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Once all blocks have done this, or ended, the next kernel may start, as far as its own wait.
__device__ inline void let_the_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// What such kernels ask of the current GPU.
struct Limits {
  int multiprocessors = 0;
  int shared_bytes = 0;        // of a multiprocessor
  int block_shared_bytes = 0;  // the most of a block
  int major = 0;               // of the compute capability
};
inline Status find_limits(Limits& limits) {
  int index = 0;
  cudaError_t error = cudaGetDevice(&index);
  const std::pair<int*, cudaDeviceAttr> wanted[] = {
      {&limits.multiprocessors, cudaDevAttrMultiProcessorCount},
      {&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor},
      {&limits.block_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin},
      {&limits.major, cudaDevAttrComputeCapabilityMajor},
  };
  for (const auto& [to, attribute] : wanted) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(to, attribute, index);
  }
  return check(error, "asking for the GPU's properties");
}

// Launches so that the kernel may start while the one before it ends, where the code for the GPU
// waits: that of 9.0. (Newer ones run what was compiled for 8.0.)
template <typename... Parameters, typename... Args>
Status launch_overlapping(void (*kernel)(Parameters...), dim3 blocks, int threads, int shared_bytes,
                          const Limits& limits, cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = limits.major == 9 ? 1 : 0;
  return check(cudaLaunchKernelEx(&config, kernel, args...), "launching a kernel");
}

}  // namespace espalier::gpu::cuda
