#include "convert/metadata.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <numbers>

#include "base/printable.h"

namespace espalier::convert {
namespace {

using file::Gguf;
using file::GgufMetadata;
using file::Json;
using file::JsonObject;

// A count that both sides have under a name of their own.
struct Count {
  std::string_view gguf;  // after the architecture's name
  std::string_view hf;
  std::uint64_t Sizes::*size = nullptr;  // where it is one of the sizes
};

constexpr auto kCounts = std::to_array<Count>({
    {"block_count", "num_hidden_layers"},
    {"context_length", "max_position_embeddings"},
    {"vocab_size", "vocab_size", &Sizes::vocab},
    {"embedding_length", "hidden_size", &Sizes::hidden},
    {"feed_forward_length", "intermediate_size", &Sizes::mlp_hidden},
    {"attention.head_count", "num_attention_heads", &Sizes::heads},
    {"attention.head_count_kv", "num_key_value_heads", &Sizes::kv_heads},
    {"attention.key_length", "head_dim", &Sizes::head_dim},
});

// As many positions as a layer looks back, where it does not look back to the beginning.
constexpr Count kWindow = {"attention.sliding_window", "sliding_window"};

constexpr std::string_view kSlides = "use_sliding_window";

constexpr double kDefaultRopeBase = 10000;

// Llama 3's published scaling; others differ in the factor and the original context, a power of
// two.
constexpr double kLlama3LowFrequency = 1, kLlama3HighFrequency = 4, kLlama3Context = 8192;
constexpr std::uint64_t kMaxOriginalContext = 1 << 20;

template <typename T>
Result<T> required(const JsonObject& object, std::string_view key, Result<std::optional<T>> value) {
  if (!value) return std::move(value.error());
  if (!*value) return input_error("{}: key '{}' is missing", object.where(), key);
  return **value;
}

// What the sizes are where a file leaves them out.
void complete(Sizes& sizes, std::uint64_t embedding_rows) {
  if (sizes.vocab == 0) sizes.vocab = embedding_rows;
  if (sizes.kv_heads == 0) sizes.kv_heads = sizes.heads;
  if (sizes.head_dim == 0 && sizes.heads != 0) sizes.head_dim = sizes.hidden / sizes.heads;
}

std::string gguf_key(const Architecture& architecture, std::string_view name) {
  return fmt::format("{}.{}", architecture.gguf_name, name);
}

// Frequencies are divided by these: 1 for pairs that turn often over the original context, `factor`
// for those that turn hardly once, and a ramp between. Source: the Llama 3.1 model card's code.
std::vector<float> llama3_factors(double base, std::uint64_t head_dim, double factor, double low,
                                  double high, double original_context) {
  std::vector<float> factors(head_dim / 2);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double frequency =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double turns = original_context * frequency / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    factors[i] = static_cast<float>(1 / (kept + (1 - kept) / factor));
  }
  return factors;
}

// --- GGUF to config.json -------------------------------------------------------------------------

Result<Json> scaling_of_factors(const Gguf& gguf, const file::GgufTensor& tensor, double base,
                                std::uint64_t head_dim) {
  const pack::Matrix matrix = tensor.matrix();
  std::vector<float> found(matrix.rows * matrix.cols);
  pack::decode_rows(matrix, 0, matrix.rows, found.data());
  const double factor = found.empty() ? 1 : found.back();
  for (std::uint64_t context = 1; context <= kMaxOriginalContext; context *= 2) {
    const std::vector<float> known =
        llama3_factors(base, head_dim, factor, kLlama3LowFrequency, kLlama3HighFrequency,
                       static_cast<double>(context));
    const bool same = std::equal(found.begin(), found.end(), known.begin(), known.end(),
                                 [](float a, float b) { return std::abs(a - b) <= 1e-5f * b; });
    if (!same) continue;
    return Json{{"rope_type", "llama3"},
                {"factor", factor},
                {"low_freq_factor", kLlama3LowFrequency},
                {"high_freq_factor", kLlama3HighFrequency},
                {"original_max_position_embeddings", context}};
  }
  return input_error(
      "{}: tensor '{}' holds other factors than Llama 3's, which config.json cannot say",
      gguf.name(), tensor.name);
}

// rope_scaling, or null. That the values make sense was checked when the model was loaded.
Result<Json> to_rope_scaling(const Gguf& gguf, const Architecture& architecture, double base,
                             std::uint64_t head_dim) {
  const auto key = [&](std::string_view name) {
    return gguf_key(architecture, fmt::format("rope.scaling.{}", name));
  };
  if (const file::GgufTensor* factors = gguf.find_tensor("rope_freqs.weight")) {
    return scaling_of_factors(gguf, *factors, base, head_dim);
  }
  ESPALIER_TRY(const auto type, gguf.string(key("type")));
  if (!type || *type == "none") {
    ESPALIER_TRY(const auto old, gguf.number(gguf_key(architecture, "rope.scale_linear")));
    if (type || !old || *old == 1) return Json();
    return Json{{"rope_type", "linear"}, {"factor", *old}};
  }
  ESPALIER_TRY(const double factor,
               file::required(gguf, key("factor"), gguf.number(key("factor"))));
  Json scaling = {{"rope_type", std::string(*type)}, {"factor", factor}};
  ESPALIER_TRY(const auto context, gguf.unsigned_integer(key("original_context_length")));
  if (context) scaling["original_max_position_embeddings"] = *context;
  ESPALIER_TRY(const auto fast, gguf.number(key("yarn_beta_fast")));
  if (fast) scaling["beta_fast"] = *fast;
  ESPALIER_TRY(const auto slow, gguf.number(key("yarn_beta_slow")));
  if (slow) scaling["beta_slow"] = *slow;
  ESPALIER_TRY(const auto magnitude, gguf.number(key("attn_factor")));
  if (magnitude && *magnitude != 1) {
    scaling["attention_factor"] = *magnitude * (0.1 * std::log(factor) + 1);
  }
  return scaling;
}

// --- config.json to GGUF -------------------------------------------------------------------------

Status set_rope_scaling(const JsonObject& rope, const Architecture& architecture, double base,
                        std::uint64_t head_dim, GgufMetadata& metadata,
                        std::vector<float>& factors) {
  ESPALIER_TRY(auto type, rope.string("rope_type"));
  if (!type) {
    ESPALIER_TRY(type, rope.string("type"));
  }
  if (!type || *type == "default") return {};
  const auto key = [&](std::string_view name) {
    return gguf_key(architecture, fmt::format("rope.scaling.{}", name));
  };
  if (*type != "linear" && *type != "yarn" && *type != "llama3") {
    return input_error(
        "{}: key 'rope_type': found '{}', expected linear, yarn or llama3, which "
        "are what converts",
        rope.where(), printable(*type));
  }
  for (const std::string_view name : {"mscale", "mscale_all_dim", "truncate"}) {
    if (rope.find(name) == nullptr) continue;
    return input_error("{}: key '{}' has no counterpart in GGUF", rope.where(), name);
  }
  ESPALIER_TRY(const double factor, required(rope, "factor", rope.number("factor")));
  ESPALIER_TRY(const auto context, rope.number("original_max_position_embeddings"));
  if (*type == "llama3") {
    ESPALIER_TRY(const auto low, rope.number("low_freq_factor"));
    ESPALIER_TRY(const auto high, rope.number("high_freq_factor"));
    factors = llama3_factors(base, head_dim, factor, low.value_or(kLlama3LowFrequency),
                             high.value_or(kLlama3HighFrequency), context.value_or(kLlama3Context));
    return {};
  }
  metadata.set(key("type"), *type);
  metadata.set(key("factor"), static_cast<float>(factor));
  if (context) {
    metadata.set(key("original_context_length"), static_cast<std::uint32_t>(*context));
  }
  ESPALIER_TRY(const auto fast, rope.number("beta_fast"));
  if (fast) metadata.set(key("yarn_beta_fast"), static_cast<float>(*fast));
  ESPALIER_TRY(const auto slow, rope.number("beta_slow"));
  if (slow) metadata.set(key("yarn_beta_slow"), static_cast<float>(*slow));
  ESPALIER_TRY(const auto magnitude, rope.number("attention_factor"));
  if (magnitude) {
    metadata.set(key("attn_factor"), static_cast<float>(*magnitude / (0.1 * std::log(factor) + 1)));
  }
  return {};
}

}  // namespace

Json float_json(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

Result<Sizes> read_sizes(const Gguf& gguf, const Architecture& architecture) {
  Sizes sizes;
  for (const Count& count : kCounts) {
    if (count.size == nullptr) continue;
    ESPALIER_TRY(const auto found, gguf.unsigned_integer(gguf_key(architecture, count.gguf)));
    sizes.*count.size = found.value_or(0);
  }
  const file::GgufTensor* embedding = gguf.find_tensor("token_embd.weight");
  complete(sizes, embedding == nullptr ? 0 : embedding->matrix().rows);
  return sizes;
}

Result<Sizes> read_sizes(const file::HfDirectory& directory) {
  Sizes sizes;
  for (const Count& count : kCounts) {
    if (count.size == nullptr) continue;
    ESPALIER_TRY(const auto found, directory.config().unsigned_integer(count.hf));
    sizes.*count.size = found.value_or(0);
  }
  complete(sizes, 0);
  return sizes;
}

Result<Json> to_config(const Gguf& gguf, const Architecture& architecture) {
  ESPALIER_TRY(const Sizes sizes, read_sizes(gguf, architecture));
  Json config = {{"architectures", {architecture.hf_class}},
                 {"model_type", architecture.model_type},
                 {"hidden_act", "silu"}};
  for (const Count& count : kCounts) {
    const std::string key = gguf_key(architecture, count.gguf);
    if (count.size != nullptr) {
      config[count.hf] = sizes.*count.size;
    } else {
      ESPALIER_TRY(config[count.hf], file::required(gguf, key, gguf.unsigned_integer(key)));
    }
  }
  ESPALIER_TRY(const auto epsilon,
               gguf.number(gguf_key(architecture, "attention.layer_norm_rms_epsilon")));
  config["rms_norm_eps"] = float_json(static_cast<float>(epsilon.value_or(1e-5)));
  ESPALIER_TRY(const auto base, gguf.number(gguf_key(architecture, "rope.freq_base")));
  config["rope_theta"] = base.value_or(kDefaultRopeBase);
  ESPALIER_TRY(const auto dims,
               gguf.unsigned_integer(gguf_key(architecture, "rope.dimension_count")));
  if (dims.value_or(sizes.head_dim) != sizes.head_dim) {
    return input_error(
        "{}: metadata key '{}': found {}, expected {}: a directory rotates heads "
        "whole",
        gguf.name(), gguf_key(architecture, "rope.dimension_count"), *dims, sizes.head_dim);
  }
  ESPALIER_TRY(
      config["rope_scaling"],
      to_rope_scaling(gguf, architecture, base.value_or(kDefaultRopeBase), sizes.head_dim));
  return config;
}

Result<GgufMetadata> to_metadata(const file::HfDirectory& directory,
                                 const Architecture& architecture,
                                 std::vector<float>& rope_factors) {
  const JsonObject config = directory.config();
  ESPALIER_TRY(const Sizes sizes, read_sizes(directory));
  GgufMetadata metadata;
  metadata.set("general.architecture", std::string(architecture.gguf_name));
  metadata.set("general.name",
               std::filesystem::absolute(directory.name()).lexically_normal().filename().string());
  for (const Count& count : kCounts) {
    std::uint64_t value = count.size != nullptr ? sizes.*count.size : 0;
    if (count.size == nullptr) {
      ESPALIER_TRY(value, required(config, count.hf, config.unsigned_integer(count.hf)));
    }
    metadata.set(gguf_key(architecture, count.gguf), static_cast<std::uint32_t>(value));
  }
  const auto head_dim = static_cast<std::uint32_t>(sizes.head_dim);
  metadata.set(gguf_key(architecture, "attention.value_length"), head_dim);
  ESPALIER_TRY(const auto epsilon, config.number("rms_norm_eps"));
  metadata.set(gguf_key(architecture, "attention.layer_norm_rms_epsilon"),
               static_cast<float>(epsilon.value_or(1e-6)));
  metadata.set(gguf_key(architecture, "rope.dimension_count"), head_dim);

  // Qwen's layers slide only where it says so, and then not all of them.
  ESPALIER_TRY(const auto window, config.unsigned_integer(kWindow.hf));
  ESPALIER_TRY(const auto slides, config.boolean(kSlides));
  if (window && slides.value_or(false)) {
    return input_error(
        "{}: key '{}': layers that slide beside others that do not have no "
        "counterpart in GGUF",
        config.where(), kSlides);
  }
  if (window && slides.value_or(true)) {
    metadata.set(gguf_key(architecture, kWindow.gguf), static_cast<std::uint32_t>(*window));
  }
  ESPALIER_TRY(const auto rotated, config.number("partial_rotary_factor"));
  if (rotated.value_or(1) != 1) {
    return input_error(
        "{}: key 'partial_rotary_factor': found {}, expected 1, which is what "
        "converts",
        config.where(), *rotated);
  }

  // rope_parameters holds everything; the older rope_scaling stands beside rope_theta.
  ESPALIER_TRY(const auto parameters, config.object("rope_parameters"));
  ESPALIER_TRY(const auto older, config.object("rope_scaling"));
  ESPALIER_TRY(const auto theta, config.number("rope_theta"));
  double base = theta.value_or(kDefaultRopeBase);
  if (parameters) {
    ESPALIER_TRY(const auto newer, parameters->number("rope_theta"));
    base = newer.value_or(base);
  }
  metadata.set(gguf_key(architecture, "rope.freq_base"), static_cast<float>(base));
  if (parameters || older) {
    ESPALIER_CHECK(set_rope_scaling(parameters ? *parameters : *older, architecture, base,
                                    sizes.head_dim, metadata, rope_factors));
  }
  return metadata;
}

}  // namespace espalier::convert
