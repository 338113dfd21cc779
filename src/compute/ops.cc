#include "compute/ops.h"

namespace espalier::compute {

void Ops::gated_mlp(std::size_t rows, const float* x, const GatedMlp& mlp, float* y) {
  const Workspace::Frame frame(workspace_);
  const std::size_t inner = mlp.down.weight.cols;
  const std::size_t count = rows * inner;
  float* gates = workspace_.floats(count);
  float* ups = workspace_.floats(count);
  if (mlp.layout == GateUp::kInterleaved) {
    float* both = workspace_.floats(2 * count);
    project(rows, x, mlp.gate, both);
    const SplitPart parts[] = {{1, gates, inner}, {1, ups, inner}};
    split(rows, inner, parts, both);
  } else {
    project(rows, x, mlp.gate, gates);
    project(rows, x, mlp.up, ups);
  }
  gate(count, gates, ups, mlp.activation, gates);
  project(rows, gates, mlp.down, y);
}

}  // namespace espalier::compute
