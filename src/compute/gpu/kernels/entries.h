// Compiles every kernel (entry_list.h) for whichever dialect includes this.
#pragma once

#include "compute/gpu/kernels/attention.h"
#include "compute/gpu/kernels/choice.h"
#include "compute/gpu/kernels/elementwise.h"
#include "compute/gpu/kernels/exl3.h"
#include "compute/gpu/kernels/formats.h"
#include "compute/gpu/kernels/norm.h"
#include "compute/gpu/kernels/project.h"
#include "compute/gpu/kernels/recurrent.h"

namespace espalier::gpu::ESPALIER_DIALECT {

#include "compute/gpu/kernels/entry_list.h"

}  // namespace espalier::gpu::ESPALIER_DIALECT
