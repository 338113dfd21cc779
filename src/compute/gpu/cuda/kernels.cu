// All portable kernels for NVIDIA GPUs, and the table in which host code finds them by name.
#include "compute/gpu/kernels/entries.h"

#include "compute/gpu/cuda/kernel_table.h"

namespace espalier::gpu::cuda {
namespace {

#undef ESPALIER_ENTRY
#define ESPALIER_ENTRY(name, Args, Memory, ...) \
  {#name, reinterpret_cast<const void*>(&espalier_##name), sizeof(Args)},
const KernelEntry kPortable[] = {
#include "compute/gpu/kernels/entry_list.h"
};

}  // namespace

KernelTable portable_kernels() { return {kPortable, sizeof(kPortable) / sizeof(kPortable[0])}; }

}  // namespace espalier::gpu::cuda
