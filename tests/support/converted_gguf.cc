#include "support/converted_gguf.h"

#include <cmath>
#include <cstring>
#include <map>
#include <numbers>
#include <stdexcept>

namespace espalier::test {
namespace {

using file::Json;

constexpr std::uint32_t kBf16 = 30;  // ggml's number

// The parts of a tensor's name between "model.layers.N." and ".weight" or ".bias".
const std::map<std::string, std::string>& layer_names(bool gemma) {
  static const std::map<std::string, std::string> kUsual = {
      {"input_layernorm", "attn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.qkv_proj", "attn_qkv"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.gate_up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
  };
  static const std::map<std::string, std::string> kGemma = [] {
    auto names = kUsual;
    names["post_attention_layernorm"] = "post_attention_norm";
    names["pre_feedforward_layernorm"] = "ffn_norm";
    names["post_feedforward_layernorm"] = "post_ffw_norm";
    return names;
  }();
  return gemma ? kGemma : kUsual;
}

std::string gguf_name(const std::string& name, bool gemma) {
  if (name == "model.embed_tokens.weight") return "token_embd.weight";
  if (name == "model.norm.weight") return "output_norm.weight";
  if (name == "lm_head.weight") return "output.weight";
  const std::string prefix = "model.layers.";
  const std::size_t layer_end = name.find('.', prefix.size());
  const std::size_t suffix = name.rfind('.');
  const std::string part = name.substr(layer_end + 1, suffix - layer_end - 1);
  return "blk." + name.substr(prefix.size(), layer_end - prefix.size()) + "." +
         layer_names(gemma).at(part) + name.substr(suffix);
}

// Rows of a head so that halves become neighbours: row 2i is i, row 2i + 1 is i + head_dim / 2.
std::string permuted(const std::string& data, std::size_t rows, std::size_t head_dim) {
  const std::size_t row_bytes = data.size() / rows;
  std::string result;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t in_head = row % head_dim;
    const std::size_t from = row - in_head + in_head / 2 + in_head % 2 * (head_dim / 2);
    result += data.substr(from * row_bytes, row_bytes);
  }
  return result;
}

// The divisors of Llama 3.1 for each pair, as a tensor rope_freqs.
std::vector<float> llama3_factors(const Json& rope, std::size_t head_dim) {
  const double factor = rope["factor"], low = rope["low_freq_factor"],
               high = rope["high_freq_factor"], context = rope["original_max_position_embeddings"];
  std::vector<float> factors;
  for (std::size_t i = 0; i < head_dim; i += 2) {
    const double frequency = std::pow(rope["rope_theta"].get<double>(), -double(i) / head_dim);
    const double wavelength = 2 * std::numbers::pi / frequency;
    const double smooth = (context / wavelength - low) / (high - low);
    factors.push_back(static_cast<float>(wavelength < context / high ? 1
                                         : wavelength > context / low
                                             ? factor
                                             : 1 / ((1 - smooth) / factor + smooth)));
  }
  return factors;
}

std::vector<float> floats(const Json& array) { return array.get<std::vector<float>>(); }

class Converter {
 public:
  explicit Converter(const file::HfDirectory& directory)
      : directory_(directory), config_(directory.config().json()) {
    type_ = config_["model_type"];
    architecture_ = type_ == "mistral" ? "llama" : type_ == "gemma3_text" ? "gemma3" : type_;
    gemma_ = type_.starts_with("gemma");
    head_dim_ = config_["head_dim"];
  }

  GgufBuilder convert() {
    file_.add("general.architecture", architecture_);
    add_sizes();
    add_rope();
    add_peculiarities();
    for (const file::Safetensors& file : directory_.files()) {
      for (const file::SafetensorsTensor& tensor : file.tensors()) add_tensor(tensor);
    }
    return std::move(file_);
  }

 private:
  template <typename T>
  void add(const std::string& key, const T& value) {
    file_.add(architecture_ + "." + key, value);
  }
  void add_count(const std::string& key, const char* hugging_face) {
    add(key, config_[hugging_face].get<std::uint32_t>());
  }
  void add_number(const std::string& key, const Json& value) { add(key, value.get<float>()); }

  void add_sizes() {
    add_count("block_count", "num_hidden_layers");
    add_count("context_length", "max_position_embeddings");
    add_count("embedding_length", "hidden_size");
    add_count("feed_forward_length", "intermediate_size");
    add_count("attention.head_count", "num_attention_heads");
    add_count("attention.head_count_kv", "num_key_value_heads");
    add_count("attention.key_length", "head_dim");
    add_count("attention.value_length", "head_dim");
    add_number("attention.layer_norm_rms_epsilon", config_["rms_norm_eps"]);
  }

  void add_rope() {
    const Json& all = config_["rope_parameters"];
    const Json& rope = all.contains("full_attention") ? all["full_attention"] : all;
    add_number("rope.freq_base", rope["rope_theta"]);
    if (all.contains("sliding_attention")) {
      add_number("rope.freq_base_swa", all["sliding_attention"]["rope_theta"]);
    }
    const std::string type = rope["rope_type"];
    if (type == "llama3") {
      file_.tensor("rope_freqs.weight", {head_dim_ / 2}, llama3_factors(rope, head_dim_));
    }
    if (type == "linear" || type == "yarn") {
      add("rope.scaling.type", type);
      add_number("rope.scaling.factor", rope["factor"]);
    }
    if (type == "yarn") {
      add("rope.scaling.original_context_length",
          rope["original_max_position_embeddings"].get<std::uint32_t>());
      add_number("rope.scaling.yarn_beta_fast", rope["beta_fast"]);
      add_number("rope.scaling.yarn_beta_slow", rope["beta_slow"]);
    }
    if (type == "longrope") add_long_rope(rope);
  }

  void add_long_rope(const Json& rope) {
    const std::uint32_t original = config_["original_max_position_embeddings"];
    const double stretch = rope["factor"];
    const auto dims = static_cast<std::uint32_t>(rope["partial_rotary_factor"].get<double>() *
                                                 static_cast<double>(head_dim_));
    add("rope.scaling.type", std::string("longrope"));
    add("rope.scaling.original_context_length", original);
    add("rope.scaling.attn_factor",
        static_cast<float>(std::sqrt(1 + std::log(stretch) / std::log(original))));
    add("rope.dimension_count", dims);
    file_.tensor("rope_factors_long.weight", {dims / 2}, floats(rope["long_factor"]));
    file_.tensor("rope_factors_short.weight", {dims / 2}, floats(rope["short_factor"]));
  }

  void add_peculiarities() {
    const bool slides = type_ == "mistral" || type_ == "qwen2" || type_ == "phi3" || gemma_;
    if (slides) add_count("attention.sliding_window", "sliding_window");
    if (gemma_) {
      add("attention.scale",
          static_cast<float>(1 / std::sqrt(config_["query_pre_attn_scalar"].get<double>())));
    }
    if (type_ == "gemma2") {
      add_number("attn_logit_softcapping", config_["attn_logit_softcapping"]);
      add_number("final_logit_softcapping", config_["final_logit_softcapping"]);
    }
    if (type_ == "qwen2") {
      std::vector<bool> pattern;
      for (const Json& kind : config_["layer_types"])
        pattern.push_back(kind == "sliding_attention");
      add("attention.sliding_window_pattern", pattern);
    }
    if (type_ == "gemma3_text") {
      add_count("attention.sliding_window_pattern", "sliding_window_pattern");
    }
  }

  void add_tensor(const file::SafetensorsTensor& tensor) {
    const std::string name = gguf_name(std::string(tensor.name), gemma_);
    if (tensor.shape.size() == 1) {
      std::vector<float> values = **directory_.find_values(tensor.name);
      const bool shifted = gemma_ && name.ends_with("norm.weight");
      for (float& value : values) value += shifted ? 1.0f : 0.0f;
      file_.tensor(name, {values.size()}, values);
      return;
    }
    const bool turned =
        name.find("attn_q.") != std::string::npos || name.find("attn_k.") != std::string::npos;
    std::string data(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    if (turned && (architecture_ == "llama" || architecture_ == "smollm3")) {
      data = permuted(data, tensor.shape[0], head_dim_);
    }
    file_.tensor({.name = name,
                  .dims = {tensor.shape[1], tensor.shape[0]},
                  .type = kBf16,
                  .data = std::move(data),
                  .offset = {}});
  }

  const file::HfDirectory& directory_;
  const Json& config_;
  std::string type_, architecture_;
  bool gemma_ = false;
  std::size_t head_dim_ = 0;
  GgufBuilder file_;
};

}  // namespace

GgufBuilder converted_gguf(const file::HfDirectory& directory) {
  return Converter(directory).convert();
}

}  // namespace espalier::test
