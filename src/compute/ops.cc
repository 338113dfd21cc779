#include "compute/ops.h"

namespace espalier::compute {

void Ops::prepare(GatedMlp& mlp) {
  for (Linear* linear : {&mlp.gate, &mlp.up, &mlp.down}) prepare(*linear);
}

void Ops::prepare(MixtureOfExperts& mixture) {
  prepare(mixture.router.linear);
  for (GatedMlp& expert : mixture.experts) prepare(expert);
  if (mixture.shared) prepare(*mixture.shared);
  if (mixture.shared_gate) prepare(*mixture.shared_gate);
}

void Ops::prepare(GatedDeltaNet& net) {
  for (Linear* linear : {&net.qkv, &net.z, &net.b, &net.a, &net.qkvz, &net.ba, &net.output}) {
    prepare(*linear);
  }
}

void Ops::project_all(std::size_t rows, const float* x, std::span<const Projection> projections) {
  for (const Projection& projection : projections) {
    project(rows, x, *projection.linear, projection.y);
  }
}

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
    const Projection both[] = {{&mlp.gate, gates}, {&mlp.up, ups}};
    project_all(rows, x, both);
  }
  gate(count, gates, ups, mlp.activation, gates);
  project(rows, gates, mlp.down, y);
}

}  // namespace espalier::compute
