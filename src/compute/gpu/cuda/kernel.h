// Kernels by the names that launch.h gives them, and how they are launched.
#pragma once

#include <string_view>

#include "base/result.h"
#include "compute/gpu/cuda/kernel_table.h"
#include "compute/gpu/cuda/stream.h"
#include "compute/gpu/grid.h"

namespace espalier::gpu::cuda {

// A kernel's one argument, a struct: CUDA copies it when the kernel is launched.
struct KernelArguments {
  const void* bytes = nullptr;
  std::size_t size = 0;
};

// Errors: there is no kernel of that name.
[[nodiscard]] Result<const KernelEntry*> find_kernel(std::string_view name);

// Adds the kernel to the stream's work. Errors: arguments of another kernel, a grid that no GPU
// takes. What goes wrong while it runs, Stream::wait() says.
[[nodiscard]] Status enqueue(Stream& stream, const KernelEntry& kernel, const Grid& grid,
                             KernelArguments arguments);
template <typename Args>
[[nodiscard]] Status enqueue(Stream& stream, const KernelEntry& kernel, const Grid& grid,
                             const Args& args) {
  return enqueue(stream, kernel, grid, KernelArguments{&args, sizeof(args)});
}

// Runs the kernel of that name by itself, after all that was on the GPU before: for tests.
[[nodiscard]] Status run_and_wait(std::string_view name, const Grid& grid,
                                  KernelArguments arguments);

}  // namespace espalier::gpu::cuda
