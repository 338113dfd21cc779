// The tests of the kernels on a real GPU.
#define ESPALIER_CUDA_HOST
#include "compute/gpu/cuda/buffer.h"

#include "compute/gpu/operators_test.cc"
#include "compute/gpu/project_test.cc"
