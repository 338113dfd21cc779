#include "model/llama.h"

#include <cmath>
#include <cstring>

#include "model/rope_scaling.h"

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

// A count out of the metadata, 1 to `limit`; `fallback` 0 means that the key must be there.
Result<std::size_t> read_count(const file::Gguf& gguf, std::string_view key, std::uint64_t limit,
                               std::uint64_t fallback = 0) {
  ESPALIER_TRY(const auto found, gguf.unsigned_integer(key));
  if (!found && fallback == 0) {
    return input_error("{}: metadata key '{}' is missing", gguf.name(), key);
  }
  const std::uint64_t count = found.value_or(fallback);
  if (count == 0 || count > limit) {
    return input_error("{}: metadata key '{}': found {}, expected 1 to {}", gguf.name(), key, count,
                       limit);
  }
  return count;
}

// A positive finite number out of the metadata.
Result<double> read_positive(const file::Gguf& gguf, std::string_view key, double fallback) {
  ESPALIER_TRY(const auto found, gguf.number(key));
  const double value = found.value_or(fallback);
  if (!(value > 0) || !std::isfinite(value)) {
    return input_error("{}: metadata key '{}': found {}, expected a positive number", gguf.name(),
                       key, value);
  }
  return value;
}

Result<RopeScaling> read_rope_scaling(const file::Gguf& gguf, std::string_view prefix,
                                      std::size_t context_length) {
  const auto key = [prefix](std::string_view name) {
    return fmt::format("{}.rope.scaling.{}", prefix, name);
  };
  RopeScaling scaling;
  ESPALIER_TRY(const auto type, gguf.string(key("type")));
  if (!type || *type == "none") {
    // Files older than the type key have only a linear factor.
    ESPALIER_TRY(const auto old, gguf.number(fmt::format("{}.rope.scale_linear", prefix)));
    if (type || !old || *old == 1) return scaling;
    ESPALIER_TRY(scaling.factor,
                 read_positive(gguf, fmt::format("{}.rope.scale_linear", prefix), 1));
    scaling.kind = RopeScalingKind::kLinear;
    return scaling;
  }
  if (*type == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
  } else if (*type == "yarn") {
    scaling.kind = RopeScalingKind::kYarn;
  } else {
    return input_error("{}: metadata key '{}': found '{}', expected none, linear or yarn",
                       gguf.name(), key("type"), *type);
  }
  ESPALIER_TRY(scaling.factor, read_positive(gguf, key("factor"), 1));
  ESPALIER_TRY(scaling.original_context, read_positive(gguf, key("original_context_length"),
                                                       static_cast<double>(context_length)));
  ESPALIER_TRY(scaling.beta_fast, read_positive(gguf, key("yarn_beta_fast"), 32));
  ESPALIER_TRY(scaling.beta_slow, read_positive(gguf, key("yarn_beta_slow"), 1));
  // The file's attention factor multiplies the one that follows from the stretch.
  ESPALIER_TRY(const double attention_factor, read_positive(gguf, key("attn_factor"), 1));
  scaling.magnitude = attention_factor * (0.1 * std::log(scaling.factor) + 1);
  return scaling;
}

}  // namespace

Result<LlamaConfig> llama_config(const file::Gguf& gguf, const Weights& weights) {
  const auto key = [](std::string_view name) { return fmt::format("llama.{}", name); };
  LlamaConfig c;
  ESPALIER_TRY(c.layers, read_count(gguf, key("block_count"), 1 << 16));
  ESPALIER_TRY(c.hidden, read_count(gguf, key("embedding_length"), 1 << 24));
  ESPALIER_TRY(c.mlp_hidden, read_count(gguf, key("feed_forward_length"), 1 << 24));
  ESPALIER_TRY(c.context_length, read_count(gguf, key("context_length"), 1u << 31));
  ESPALIER_TRY(c.heads, read_count(gguf, key("attention.head_count"), 1 << 16));
  ESPALIER_TRY(c.kv_heads, read_count(gguf, key("attention.head_count_kv"), 1 << 16, c.heads));
  if (c.heads % c.kv_heads != 0) {
    return input_error("{}: metadata key '{}': found {}, which does not divide the {} heads",
                       gguf.name(), key("attention.head_count_kv"), c.kv_heads, c.heads);
  }
  ESPALIER_TRY(c.head_dim,
               read_count(gguf, key("attention.key_length"), 1 << 16, c.hidden / c.heads));
  ESPALIER_TRY(const std::size_t value_dim,
               read_count(gguf, key("attention.value_length"), 1 << 16, c.hidden / c.heads));
  if (value_dim != c.head_dim) {
    return input_error("{}: metadata key '{}': found {}, expected the key length {}", gguf.name(),
                       key("attention.value_length"), value_dim, c.head_dim);
  }
  ESPALIER_TRY(const double epsilon,
               read_positive(gguf, key("attention.layer_norm_rms_epsilon"), 1e-5));
  c.norm_epsilon = static_cast<float>(epsilon);
  ESPALIER_TRY(const auto experts, gguf.unsigned_integer(key("expert_count")));
  if (experts.value_or(0) != 0) {
    return input_error("{}: metadata key '{}': found {}; mixtures of experts are not supported",
                       gguf.name(), key("expert_count"), *experts);
  }

  ESPALIER_TRY(const auto embedding, weights.find_matrix(kGgufLlamaNames.embedding));
  if (!embedding) {
    return input_error("{}: the weight of '{}' is missing", gguf.name(), kGgufLlamaNames.embedding);
  }
  ESPALIER_TRY(c.vocab_size, read_count(gguf, key("vocab_size"), 1u << 31, embedding->rows));

  ESPALIER_TRY(const std::size_t rope_dims,
               read_count(gguf, key("rope.dimension_count"), c.head_dim, c.head_dim));
  if (rope_dims % 2 != 0) {
    return input_error("{}: metadata key '{}': found {}, expected an even number", gguf.name(),
                       key("rope.dimension_count"), rope_dims);
  }
  ESPALIER_TRY(const double base, read_positive(gguf, key("rope.freq_base"), 10000));
  ESPALIER_TRY(const RopeScaling scaling, read_rope_scaling(gguf, "llama", c.context_length));
  ESPALIER_TRY(const auto factors, weights.find_vector("rope_freqs.weight"));
  if (factors && factors->size() != rope_dims / 2) {
    return input_error("{}: tensor 'rope_freqs.weight' has {} values, expected {}", gguf.name(),
                       factors->size(), rope_dims / 2);
  }
  c.rope = make_rope(compute::RopePairs::kInterleaved, rope_dims, base, scaling,
                     factors ? std::span<const float>(*factors) : std::span<const float>());
  return c;
}

Result<std::unique_ptr<Model>> load_llama(const LlamaConfig& config, const Weights& weights,
                                          const LlamaNames& names) {
  auto llama = std::make_unique<Llama>(config, weights.source());
  ESPALIER_CHECK(llama->bind(weights, names));
  return std::unique_ptr<Model>(std::move(llama));
}

}  // namespace espalier::model
