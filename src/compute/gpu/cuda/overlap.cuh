// Kernels of a stream that overlap: one that was launched with programmatic stream serialization
// may start before the one before it has ended.
#pragma once

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

}  // namespace espalier::gpu::cuda
