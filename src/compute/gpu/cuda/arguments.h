// The arguments of all kernels as host code fills them in: structs of numbers and of pointers into
// the GPU's memory. A file that includes this must not include the emulated dialect.
#pragma once

#define ESPALIER_CUDA_HOST

#include "compute/gpu/kernels/attention.h"
#include "compute/gpu/kernels/choice.h"
#include "compute/gpu/kernels/elementwise.h"
#include "compute/gpu/kernels/exl3.h"
#include "compute/gpu/kernels/norm.h"
#include "compute/gpu/kernels/project.h"
#include "compute/gpu/kernels/recurrent.h"
