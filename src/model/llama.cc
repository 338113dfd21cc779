#include "model/llama.h"

#include <cmath>
#include <cstring>

namespace espalier::model {
namespace {

using compute::Attention;
using compute::GatedMlp;
using compute::KvView;
using compute::Linear;
using compute::Ops;
using compute::Row;
using compute::Workspace;

struct LlamaLayer {
  std::vector<float> attention_norm;
  Linear query, key, value, output;
  std::vector<float> mlp_norm;
  GatedMlp mlp;
};

class Llama final : public Model {
 public:
  Llama(const LlamaConfig& config, std::string source) : config_(config) {
    info_ = {.source = std::move(source),
             .architecture = "llama",
             .vocab_size = config.vocab_size,
             .context_length = config.context_length,
             .layers = config.layers,
             .kv_heads = config.kv_heads,
             .head_dim = config.head_dim};
  }

  Status bind(const Weights& weights, const LlamaNames& names);

  void forward(Ops& ops, std::span<const Row> rows, std::span<const KvView> cache,
               std::span<const std::size_t> wanted, float* logits) const override;

 private:
  // x += attention(norm(x))
  void attend(Ops& ops, std::span<const Row> rows, const LlamaLayer& layer, const KvView& cache,
              float* x) const;

  LlamaConfig config_;
  pack::Matrix embedding_;
  std::vector<LlamaLayer> layers_;
  std::vector<float> final_norm_;
  Linear head_;
};

Status Llama::bind(const Weights& weights, const LlamaNames& names) {
  const LlamaConfig& c = config_;
  const std::size_t query_size = c.heads * c.head_dim;
  const std::size_t kv_size = c.kv_heads * c.head_dim;

  ESPALIER_TRY(embedding_, weights.matrix(names.embedding, c.vocab_size, c.hidden));
  for (std::size_t l = 0; l < c.layers; ++l) {
    const auto name = [l](std::string_view pattern) {
      return fmt::format(fmt::runtime(pattern), l);
    };
    LlamaLayer layer;
    ESPALIER_TRY(layer.attention_norm,
                 weights.vector(name(names.attention_norm) + ".weight", c.hidden));
    ESPALIER_TRY(layer.query, weights.linear(name(names.query), query_size, c.hidden));
    ESPALIER_TRY(layer.key, weights.linear(name(names.key), kv_size, c.hidden));
    ESPALIER_TRY(layer.value, weights.linear(name(names.value), kv_size, c.hidden));
    ESPALIER_TRY(layer.output, weights.linear(name(names.output), c.hidden, query_size));
    ESPALIER_TRY(layer.mlp_norm, weights.vector(name(names.mlp_norm) + ".weight", c.hidden));
    ESPALIER_TRY(layer.mlp.gate, weights.linear(name(names.gate), c.mlp_hidden, c.hidden));
    ESPALIER_TRY(layer.mlp.up, weights.linear(name(names.up), c.mlp_hidden, c.hidden));
    ESPALIER_TRY(layer.mlp.down, weights.linear(name(names.down), c.hidden, c.mlp_hidden));
    layers_.push_back(std::move(layer));
  }
  ESPALIER_TRY(final_norm_, weights.vector(fmt::format("{}.weight", names.final_norm), c.hidden));

  // A model without a head of its own multiplies by its embedding.
  ESPALIER_TRY(const auto head, weights.find_matrix(names.head));
  if (head) {
    ESPALIER_TRY(head_, weights.linear(names.head, c.vocab_size, c.hidden));
  } else {
    head_.weight = embedding_;
  }
  return {};
}

void Llama::attend(Ops& ops, std::span<const Row> rows, const LlamaLayer& layer,
                   const KvView& cache, float* x) const {
  const LlamaConfig& c = config_;
  const std::size_t n = rows.size();
  const Workspace::Frame frame(ops.workspace());
  float* normed = ops.workspace().floats(n * c.hidden);
  float* queries = ops.workspace().floats(n * c.heads * c.head_dim);
  float* keys = ops.workspace().floats(n * c.kv_heads * c.head_dim);
  float* values = ops.workspace().floats(n * c.kv_heads * c.head_dim);

  ops.rms_norm(n, x, layer.attention_norm, c.norm_epsilon, normed);
  ops.project(n, normed, layer.query, queries);
  ops.project(n, normed, layer.key, keys);
  ops.project(n, normed, layer.value, values);
  ops.rope(rows, c.heads, c.head_dim, c.rope, queries);
  ops.rope(rows, c.kv_heads, c.head_dim, c.rope, keys);
  ops.store_kv(rows, keys, values, cache);

  const Attention attention = {.heads = c.heads,
                               .kv_heads = c.kv_heads,
                               .head_dim = c.head_dim,
                               .scale = 1 / std::sqrt(static_cast<float>(c.head_dim))};
  float* attended = ops.workspace().floats(n * c.heads * c.head_dim);
  ops.attention(rows, queries, cache, attention, attended);
  ops.project(n, attended, layer.output, normed);
  ops.add(n * c.hidden, normed, x);
}

void Llama::forward(Ops& ops, std::span<const Row> rows, std::span<const KvView> cache,
                    std::span<const std::size_t> wanted, float* logits) const {
  const LlamaConfig& c = config_;
  const std::size_t n = rows.size();
  const Workspace::Frame frame(ops.workspace());
  float* x = ops.workspace().floats(n * c.hidden);
  float* y = ops.workspace().floats(n * c.hidden);

  ops.embed(rows, embedding_, x);
  for (std::size_t l = 0; l < c.layers; ++l) {
    attend(ops, rows, layers_[l], cache[l], x);
    ops.rms_norm(n, x, layers_[l].mlp_norm, c.norm_epsilon, y);
    ops.gated_mlp(n, y, layers_[l].mlp, y);
    ops.add(n * c.hidden, y, x);
  }

  // The head sees only the rows whose logits are wanted.
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::memcpy(y + i * c.hidden, x + wanted[i] * c.hidden, c.hidden * sizeof(float));
  }
  ops.rms_norm(wanted.size(), y, final_norm_, c.norm_epsilon, y);
  ops.project(wanted.size(), y, head_, logits);
}

}  // namespace

Result<std::unique_ptr<Model>> load_llama(const LlamaConfig& config, const Weights& weights,
                                          const LlamaNames& names) {
  auto llama = std::make_unique<Llama>(config, weights.source());
  ESPALIER_CHECK(llama->bind(weights, names));
  return std::unique_ptr<Model>(std::move(llama));
}

}  // namespace espalier::model
