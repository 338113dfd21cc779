// The gated MLP as a layer of a decoder. Shazeer, GLU variants (2020).
#pragma once

#include "compute/ops.h"
#include "model/decoder_config.h"
#include "model/modules.h"

namespace espalier::model {

class MlpBlock {
 public:
  // Errors: tensors that are missing or of the wrong shape.
  static Result<MlpBlock> bind(const DecoderConfig& decoder, const MlpConfig& config,
                               const Modules& modules, std::size_t layer);

  void prepare(compute::Ops& ops) {
    ops.prepare(mlp_);
    model::prepare(ops, gate_up_);
  }

  // y [rows, hidden] = mlp of x [rows, hidden], which is normed. y may be x.
  void forward(compute::Ops& ops, std::size_t rows, const float* x, float* y) const;

 private:
  compute::GatedMlp mlp_;  // without gate and up where these are one matrix that must stay whole
  JointLinear gate_up_;    // used then
};

}  // namespace espalier::model
