// A gated delta net as a layer of a decoder: Yang et al. (2024), as Qwen3-Next and Qwen3.5 have it.
#pragma once

#include "compute/ops.h"
#include "model/decoder_config.h"
#include "model/model.h"
#include "model/modules.h"

namespace espalier::model {

class DeltaNetBlock {
 public:
  // Errors: tensors that are missing or of the wrong shape.
  static Result<DeltaNetBlock> bind(const DecoderConfig& decoder, const DeltaNetConfig& config,
                                    const Modules& modules, std::size_t layer);

  void prepare(compute::Ops& ops) { ops.prepare(net_); }

  // y [rows, hidden] = net of x [rows, hidden], which is normed.
  void forward(compute::Ops& ops, std::span<const compute::Row> rows,
               const compute::RecurrentView& state, const float* x, float* y) const {
    ops.gated_delta_net(rows, x, net_, state, y);
  }

  [[nodiscard]] LayerCache cache() const {
    return {.convolution_size = net_.convolution.state_size(),
            .memory_size = net_.rule.memory_size()};
  }

 private:
  compute::GatedDeltaNet net_;
};

}  // namespace espalier::model
