// A kernel that the type check has to refuse: device memory is not the block's.
#include "compute/gpu/dialect/dialect.h"

namespace espalier::gpu::metal_kernels {

struct MixedArguments {
  Global<float> x;
};
struct MixedMemory {
  SharedArray<float, 32> values;
};

ESPALIER_DEVICE float first(Shared<float> values) { return values[0]; }

ESPALIER_DEVICE void mixed(Thread at, Arguments<MixedArguments> args, BlockMemory<MixedMemory>) {
  args.x[at.index] = first(args.x);
}

ESPALIER_ENTRY(mixed, MixedArguments, MixedMemory, mixed)

}  // namespace espalier::gpu::metal_kernels
