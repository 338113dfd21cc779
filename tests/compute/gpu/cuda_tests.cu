// The tests of the kernels, compiled by nvcc: for a machine with an NVIDIA GPU.
#include "compute/gpu/cuda_buffer.h"

#include "compute/gpu/operators_test.cc"
#include "compute/gpu/project_test.cc"
