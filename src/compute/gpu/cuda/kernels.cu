// All kernels for NVIDIA GPUs.
#include "compute/gpu/kernels/entries.h"
