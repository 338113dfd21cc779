// How files that nvcc compiles hand their kernels to host code: plain structs, nothing included.
#pragma once

#include <cstddef>

namespace espalier::gpu::cuda {

struct KernelEntry {
  const char* name;            // as launch.h names it: "project_q4_0"
  const void* function;        // for cudaLaunchKernel
  std::size_t argument_bytes;  // of its one argument, a struct
};

struct KernelTable {
  const KernelEntry* entries;
  std::size_t count;
};

// Those of kernels/entry_list.h.
[[nodiscard]] KernelTable portable_kernels();

}  // namespace espalier::gpu::cuda
