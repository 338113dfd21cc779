#include "measure/gpu_bench.h"

#include "compute/gpu/cuda/parts.h"

namespace espalier::measure {

const std::vector<GpuOperator>& gpu_operators() {
  static const std::vector<GpuOperator> operators = {
      {"project", "OUTPUTSxINPUTS", {4096, 14336}, {}, gpu::cuda::kMostParts},
      {"attention", "HEADSxKV_HEADSxHEAD_DIMxPOSITIONS", {32, 8, 128, 8192}, {"F16", "F32"}},
      {"rms-norm", "WIDTH", {4096}, {}},
      {"rope", "HEADSxHEAD_DIM", {32, 128}, {}},
      {"gate", "WIDTH", {14336}, {}},
      {"softmax", "WIDTH", {128256}, {}},
      {"top-k", "WIDTHxCOUNT", {128256, 40}, {}},
      {"delta-rule", "KEY_HEADSxVALUE_HEADSxKEY_DIMxVALUE_DIM", {16, 32, 128, 128}, {}},
  };
  return operators;
}

}  // namespace espalier::measure
