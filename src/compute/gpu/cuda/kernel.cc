#include "compute/gpu/cuda/kernel.h"

#include <span>

#include "compute/gpu/cuda/error.h"

namespace espalier::gpu::cuda {

Result<const KernelEntry*> find_kernel(std::string_view name) {
  const KernelTable table = portable_kernels();
  for (const KernelEntry& entry : std::span(table.entries, table.count)) {
    if (entry.name == name) return &entry;
  }
  return work_error("{}: there is no GPU kernel of that name", name);
}

Status enqueue(Stream& stream, const KernelEntry& kernel, const Grid& grid,
               KernelArguments arguments) {
  if (arguments.size != kernel.argument_bytes) {
    return work_error("{}: found {} bytes of arguments, expected {}", kernel.name, arguments.size,
                      kernel.argument_bytes);
  }
  const bool fits = grid.blocks_x >= 1 && grid.blocks_x <= kMostBlocksX && grid.blocks_y >= 1 &&
                    grid.blocks_y <= kMostBlocksY && grid.threads >= 1 &&
                    grid.threads <= kMostThreads && grid.threads % kWarpThreads == 0;
  if (!fits) {
    return work_error("{}: {} × {} blocks of {} threads are no grid that GPUs take", kernel.name,
                      grid.blocks_x, grid.blocks_y, grid.threads);
  }
  void* parameters[] = {const_cast<void*>(arguments.bytes)};
  return check(cudaLaunchKernel(kernel.function, dim3(grid.blocks_x, grid.blocks_y),
                                dim3(grid.threads), parameters, 0, stream.get()),
               "launching {} on {} × {} blocks of {} threads", kernel.name, grid.blocks_x,
               grid.blocks_y, grid.threads);
}

Status run_and_wait(std::string_view name, const Grid& grid, KernelArguments arguments) {
  ESPALIER_TRY(const KernelEntry* const kernel, find_kernel(name));
  ESPALIER_CHECK(check(cudaDeviceSynchronize(), "waiting for what was before {}", name));
  ESPALIER_TRY(Stream stream, Stream::create());
  ESPALIER_CHECK(enqueue(stream, *kernel, grid, arguments));
  return check(cudaStreamSynchronize(stream.get()), "running {}", name);
}

}  // namespace espalier::gpu::cuda
