// A mixture of experts as a layer of a decoder: finds router, experts and shared expert in whatever
// form a checkpoint stores them.
#pragma once

#include "compute/ops.h"
#include "model/decoder_config.h"
#include "model/modules.h"

namespace espalier::model {

class MixtureBlock {
 public:
  // Errors: tensors that are missing or of the wrong shape.
  static Result<MixtureBlock> bind(const DecoderConfig& decoder, const MixtureConfig& config,
                                   const Modules& modules, std::size_t layer);

  void prepare(compute::Ops& ops) { ops.prepare(mixture_); }

  // y [rows, hidden] = mixture of x [rows, hidden], which is normed. y may not be x.
  void forward(compute::Ops& ops, std::size_t rows, const float* x, float* y) const {
    ops.mixture_of_experts(rows, x, mixture_, y);
  }

 private:
  compute::MixtureOfExperts mixture_;
};

}  // namespace espalier::model
