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

void Ops::add_rms_norm(std::size_t rows, float* y, std::span<const float> post,
                       std::span<const float> weight, float epsilon, float* x, float* normed) {
  if (!post.empty()) rms_norm(rows, y, post, epsilon, y);
  add(rows * weight.size(), y, x);
  rms_norm(rows, x, weight, epsilon, normed);
}

void Ops::norm_rope_store(std::span<const Row> rows, const Heads& heads, const HeadNorms& norms,
                          const Rope* rope, const KvView& cache) {
  struct Part {
    float* x;
    std::size_t heads;
    std::span<const float> norm;
  };
  for (const Part& part : {Part{heads.queries, heads.query_heads, norms.queries},
                           Part{heads.keys, cache.kv_heads, norms.keys}}) {
    if (!part.norm.empty()) {
      rms_norm(rows.size() * part.heads, part.x, part.norm, norms.epsilon, part.x);
    }
    if (rope != nullptr) this->rope(rows, part.heads, cache.head_dim, *rope, part.x);
  }
  store_kv(rows, heads.keys, heads.values, cache);
}

void Ops::gate_project(std::size_t rows, float* gates, const float* ups, Activation activation,
                       const Linear& linear, float* y) {
  gate(rows * linear.weight.cols, gates, ups, activation, gates);
  project(rows, gates, linear, y);
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
  gate_project(rows, gates, ups, mlp.activation, mlp.down, y);
}

}  // namespace espalier::compute
