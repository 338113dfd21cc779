// Reads a Llama's configuration out of GGUF metadata and out of config.json.
#include <cmath>

#include "model/llama.h"
#include "model/rope_scaling.h"

namespace espalier::model {
namespace {

// Bounds of what a file may claim, so that no product of them overflows.
constexpr std::uint64_t kMaxLayers = 1u << 16;
constexpr std::uint64_t kMaxHeads = 1u << 16;  // also of a head's elements
constexpr std::uint64_t kMaxWidth = 1u << 24;
constexpr std::uint64_t kMaxTokens = 1u << 31;

// How messages name a key of either container.
std::string key_place(const file::Gguf& gguf, std::string_view key) {
  return fmt::format("{}: metadata key '{}'", gguf.name(), key);
}
std::string key_place(const file::JsonObject& object, std::string_view key) {
  return fmt::format("{}: key '{}'", object.where(), key);
}

// A count out of a file, 1 to `limit`; `fallback` 0 means that the key must be there.
template <typename Source>
Result<std::size_t> read_count(const Source& source, std::string_view key, std::uint64_t limit,
                               std::uint64_t fallback = 0) {
  ESPALIER_TRY(const auto found, source.unsigned_integer(key));
  if (!found && fallback == 0) return input_error("{} is missing", key_place(source, key));
  const std::uint64_t count = found.value_or(fallback);
  if (count == 0 || count > limit) {
    return input_error("{}: found {}, expected 1 to {}", key_place(source, key), count, limit);
  }
  return count;
}

// A positive finite number out of a file.
template <typename Source>
Result<double> read_positive(const Source& source, std::string_view key, double fallback) {
  ESPALIER_TRY(const auto found, source.number(key));
  const double value = found.value_or(fallback);
  if (!(value > 0) || !std::isfinite(value)) {
    return input_error("{}: found {}, expected a positive number", key_place(source, key), value);
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

// Scaling as config.json gives it: rope_parameters holds everything; the older rope_scaling stands
// beside rope_theta. `rope` is either.
Result<RopeScaling> read_rope_scaling(const file::JsonObject& rope, std::size_t context_length) {
  RopeScaling scaling;
  ESPALIER_TRY(auto type, rope.string("rope_type"));
  if (!type) {
    ESPALIER_TRY(type, rope.string("type"));
  }
  if (!type || *type == "default") return scaling;
  if (*type == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
  } else if (*type == "yarn") {
    scaling.kind = RopeScalingKind::kYarn;
  } else if (*type == "llama3") {
    scaling.kind = RopeScalingKind::kLlama3;
  } else {
    return input_error("{}: key 'rope_type': found '{}', expected default, linear, yarn or llama3",
                       rope.where(), *type);
  }
  ESPALIER_TRY(scaling.factor, read_positive(rope, "factor", 1));
  ESPALIER_TRY(scaling.original_context, read_positive(rope, "original_max_position_embeddings",
                                                       static_cast<double>(context_length)));
  ESPALIER_TRY(scaling.beta_fast, read_positive(rope, "beta_fast", scaling.beta_fast));
  ESPALIER_TRY(scaling.beta_slow, read_positive(rope, "beta_slow", scaling.beta_slow));
  ESPALIER_TRY(scaling.low_frequency_factor, read_positive(rope, "low_freq_factor", 1));
  ESPALIER_TRY(scaling.high_frequency_factor, read_positive(rope, "high_freq_factor", 4));
  if (scaling.high_frequency_factor <= scaling.low_frequency_factor) {
    return input_error(
        "{}: key 'high_freq_factor': found {}, expected more than low_freq_factor {}", rope.where(),
        scaling.high_frequency_factor, scaling.low_frequency_factor);
  }
  ESPALIER_TRY(const auto magnitude, rope.number("attention_factor"));
  scaling.magnitude = magnitude.value_or(0);
  return scaling;
}

}  // namespace

Result<LlamaConfig> llama_config(const file::Gguf& gguf, const Weights& weights) {
  const auto key = [](std::string_view name) { return fmt::format("llama.{}", name); };
  LlamaConfig c;
  ESPALIER_TRY(c.layers, read_count(gguf, key("block_count"), kMaxLayers));
  ESPALIER_TRY(c.hidden, read_count(gguf, key("embedding_length"), kMaxWidth));
  ESPALIER_TRY(c.mlp_hidden, read_count(gguf, key("feed_forward_length"), kMaxWidth));
  ESPALIER_TRY(c.context_length, read_count(gguf, key("context_length"), kMaxTokens));
  ESPALIER_TRY(c.heads, read_count(gguf, key("attention.head_count"), kMaxHeads));
  ESPALIER_TRY(c.kv_heads, read_count(gguf, key("attention.head_count_kv"), kMaxHeads, c.heads));
  if (c.heads % c.kv_heads != 0) {
    return input_error("{}: metadata key '{}': found {}, which does not divide the {} heads",
                       gguf.name(), key("attention.head_count_kv"), c.kv_heads, c.heads);
  }
  ESPALIER_TRY(c.head_dim,
               read_count(gguf, key("attention.key_length"), kMaxHeads, c.hidden / c.heads));
  ESPALIER_TRY(const std::size_t value_dim,
               read_count(gguf, key("attention.value_length"), kMaxHeads, c.hidden / c.heads));
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
  ESPALIER_TRY(c.vocab_size, read_count(gguf, key("vocab_size"), kMaxTokens, embedding->rows));

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

Result<LlamaConfig> llama_config(const file::JsonObject& config) {
  LlamaConfig c;
  ESPALIER_TRY(c.layers, read_count(config, "num_hidden_layers", kMaxLayers));
  ESPALIER_TRY(c.hidden, read_count(config, "hidden_size", kMaxWidth));
  ESPALIER_TRY(c.mlp_hidden, read_count(config, "intermediate_size", kMaxWidth));
  ESPALIER_TRY(c.vocab_size, read_count(config, "vocab_size", kMaxTokens));
  ESPALIER_TRY(c.context_length, read_count(config, "max_position_embeddings", kMaxTokens));
  ESPALIER_TRY(c.heads, read_count(config, "num_attention_heads", kMaxHeads));
  ESPALIER_TRY(c.kv_heads, read_count(config, "num_key_value_heads", kMaxHeads, c.heads));
  if (c.heads % c.kv_heads != 0) {
    return input_error("{}: found {}, which does not divide the {} heads",
                       key_place(config, "num_key_value_heads"), c.kv_heads, c.heads);
  }
  ESPALIER_TRY(c.head_dim, read_count(config, "head_dim", kMaxHeads, c.hidden / c.heads));
  if (c.head_dim % 2 != 0) {
    return input_error("{}: found {}, expected an even number", key_place(config, "head_dim"),
                       c.head_dim);
  }
  ESPALIER_TRY(const double epsilon, read_positive(config, "rms_norm_eps", 1e-6));
  c.norm_epsilon = static_cast<float>(epsilon);
  ESPALIER_TRY(const auto activation, config.string("hidden_act"));
  if (activation.value_or("silu") != "silu") {
    return input_error("{}: found '{}', expected silu", key_place(config, "hidden_act"),
                       *activation);
  }

  ESPALIER_TRY(double base, read_positive(config, "rope_theta", 10000));
  RopeScaling scaling;
  ESPALIER_TRY(const auto parameters, config.object("rope_parameters"));
  ESPALIER_TRY(const auto older, config.object("rope_scaling"));
  if (parameters) {
    ESPALIER_TRY(base, read_positive(*parameters, "rope_theta", base));
  }
  if (parameters || older) {
    ESPALIER_TRY(scaling, read_rope_scaling(parameters ? *parameters : *older, c.context_length));
  }
  c.rope = make_rope(compute::RopePairs::kHalves, c.head_dim, base, scaling, {});
  return c;
}

}  // namespace espalier::model
