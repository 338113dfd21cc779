#include "model/mlp_block.h"

namespace espalier::model {

Result<MlpBlock> MlpBlock::bind(const DecoderConfig& decoder, const MlpConfig& config,
                                const Modules& modules, std::size_t layer) {
  MlpBlock block;
  const Modules::Part parts[] = {{Module::kGate, config.hidden}, {Module::kUp, config.hidden}};
  ESPALIER_TRY(block.gate_up_, modules.linears(parts, Module::kGateUp, layer, decoder.hidden));
  if (block.gate_up_.parts.size() == 2) {
    block.mlp_.gate = std::move(block.gate_up_.parts[0]);
    block.mlp_.up = std::move(block.gate_up_.parts[1]);
    block.gate_up_ = {};
  }
  block.mlp_.activation = config.activation;
  ESPALIER_TRY(block.mlp_.down,
               modules.linear(Module::kDown, layer, decoder.hidden, config.hidden));
  return block;
}

void MlpBlock::forward(compute::Ops& ops, std::size_t rows, const float* x, float* y) const {
  if (gate_up_.parts.empty()) {
    ops.gated_mlp(rows, x, mlp_, y);
    return;
  }
  const compute::Workspace::Frame frame(ops.workspace());
  const std::size_t count = rows * gate_up_.sizes[0];
  float* gates = ops.workspace().floats(count);
  float* ups = ops.workspace().floats(count);
  float* const projected[] = {gates, ups};
  project(ops, rows, x, gate_up_, projected);
  ops.gate_project(rows, gates, ups, mlp_.activation, mlp_.down, y);
}

}  // namespace espalier::model
