// All kernels for Apple GPUs.
#include "compute/gpu/kernels/entries.h"
