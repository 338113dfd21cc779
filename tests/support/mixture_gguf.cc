#include "support/mixture_gguf.h"

#include <cmath>
#include <map>
#include <stdexcept>

namespace espalier::test {
namespace {

using Values = std::vector<float>;

// What GGUF calls a tensor of a layer; {} of the architecture's own names are not needed here.
const std::map<std::string, std::string, std::less<>> kLayerNames = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.router.weight", "ffn_gate_inp.weight"},
    {"mlp.router.bias", "ffn_gate_inp.bias"},
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"mlp.experts.down_proj_bias", "ffn_down_exps.bias"},
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
    {"linear_attn.in_proj_ba.weight", "ssm_ba.weight"},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm.weight", "ssm_norm.weight"},
    {"linear_attn.out_proj.weight", "ssm_out.weight"},
};

const std::map<std::string, std::string, std::less<>> kArchitectures = {
    {"mixtral", "llama"},        {"qwen3_moe", "qwen3moe"},  {"gpt_oss", "gpt-oss"},
    {"qwen3_next", "qwen3next"}, {"qwen3_5_text", "qwen35"}, {"qwen3_5_moe_text", "qwen35moe"}};

// A matrix [rows, cols] with its rows in blocks of `size`: block i of the result is block order[i].
Values reorder_rows(const Values& from, std::size_t cols, std::size_t size,
                    const std::vector<std::size_t>& order) {
  Values to;
  for (const std::size_t block : order) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(block * size * cols);
    to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(size * cols));
  }
  return to;
}

Values transpose(const Values& from, std::size_t rows, std::size_t cols) {
  Values to(from.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) to[c * rows + r] = from[r * cols + c];
  }
  return to;
}

class Converter {
 public:
  explicit Converter(const file::HfDirectory& directory)
      : directory_(directory), config_(directory.config().json()) {
    type_ = config_.at("model_type").get<std::string>();
    hybrid_ = config_.contains("linear_num_key_heads");
    experts_ = number("num_experts", number("num_local_experts", 0));
  }

  GgufBuilder convert() {
    add_metadata();
    for (const file::Safetensors& file : directory_.files()) {
      for (const file::SafetensorsTensor& tensor : file.tensors()) convert(tensor);
    }
    for (const auto& [name, stack] : stacks_) {
      gguf_.tensor(name, {stack.cols, stack.values.size() / stack.cols / experts_, experts_},
                   stack.values);
    }
    return std::move(gguf_);
  }

 private:
  struct Stack {
    std::uint64_t cols;
    Values values;
  };

  [[nodiscard]] std::uint64_t number(const char* key, std::uint64_t fallback) const {
    return config_.value(key, fallback);
  }
  [[nodiscard]] std::uint64_t number(const char* key) const {
    return config_.at(key).get<std::uint64_t>();
  }

  template <typename T>
  void add(const std::string& key, T value) {
    gguf_.add(kArchitectures.at(type_) + "." + key, value);
  }
  void add_count(const std::string& key, std::uint64_t value) {
    add(key, static_cast<std::uint32_t>(value));
  }

  void add_metadata() {
    gguf_.add("general.architecture", kArchitectures.at(type_));
    add_count("block_count", number("num_hidden_layers"));
    add_count("embedding_length", number("hidden_size"));
    add_count("feed_forward_length", number("intermediate_size"));
    add_count("context_length", number("max_position_embeddings"));
    add_count("attention.head_count", number("num_attention_heads"));
    add_count("attention.head_count_kv", number("num_key_value_heads"));
    add_count("attention.key_length", number("head_dim"));
    add_count("attention.value_length", number("head_dim"));
    add("attention.layer_norm_rms_epsilon", config_.at("rms_norm_eps").get<float>());
    const file::Json& rope =
        config_.contains("rope_parameters") ? config_["rope_parameters"] : config_;
    add("rope.freq_base", rope.at("rope_theta").get<float>());
    if (experts_ != 0) {
      add_count("expert_count", experts_);
      add_count("expert_used_count", number("num_experts_per_tok"));
      if (type_ != "mixtral") {
        add_count("expert_feed_forward_length",
                  number("moe_intermediate_size", number("intermediate_size")));
      }
      if (!config_.value("norm_topk_prob", true)) add("expert_weights_norm", false);
    }
    if (type_ == "gpt_oss") {
      add_count("attention.sliding_window", number("sliding_window"));
      add("rope.scaling.type", std::string("yarn"));
      add("rope.scaling.factor", 32.0f);
      add_count("rope.scaling.original_context_length", 4096);
    }
    if (!hybrid_) return;
    add_count("rope.dimension_count", number("head_dim") / 4);
    add_count("full_attention_interval", 2);
    add_count("ssm.conv_kernel", number("linear_conv_kernel_dim"));
    add_count("ssm.state_size", number("linear_key_head_dim"));
    add_count("ssm.group_count", number("linear_num_key_heads"));
    add_count("ssm.time_step_rank", number("linear_num_value_heads"));
    add_count("ssm.inner_size", value_size());
    if (experts_ != 0) {
      add_count("expert_shared_feed_forward_length", number("shared_expert_intermediate_size"));
    }
  }

  [[nodiscard]] std::uint64_t key_size() const {
    return number("linear_num_key_heads") * number("linear_key_head_dim");
  }
  [[nodiscard]] std::uint64_t value_size() const {
    return number("linear_num_value_heads") * number("linear_value_head_dim");
  }

  // Qwen3.5: value head i of the file is that of key head i mod key heads.
  [[nodiscard]] std::vector<std::size_t> tiled_heads() const {
    const std::size_t keys = number("linear_num_key_heads");
    const std::size_t share = number("linear_num_value_heads") / keys;
    std::vector<std::size_t> order;
    for (std::size_t s = 0; s < share; ++s) {
      for (std::size_t k = 0; k < keys; ++k) order.push_back(k * share + s);
    }
    return order;
  }

  void convert(const file::SafetensorsTensor& tensor) {
    const std::string& name = tensor.name;
    if (name.ends_with("_scales")) return;
    if (name.ends_with("_blocks")) return convert_mxfp4(tensor);
    Values values = **directory_.find_values(name);
    std::vector<std::uint64_t> dims(tensor.shape.rbegin(), tensor.shape.rend());
    if (hybrid_ && name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight")) {
      for (float& value : values) value += 1;
    }
    constexpr std::string_view kLayers = "model.layers.";
    if (!name.starts_with(kLayers)) {
      const std::map<std::string, std::string> names = {
          {"model.embed_tokens.weight", "token_embd.weight"},
          {"model.norm.weight", "output_norm.weight"},
          {"lm_head.weight", "output.weight"}};
      gguf_.tensor(names.at(name), dims, values);
      return;
    }
    const std::size_t dot = name.find('.', kLayers.size());
    prefix_ = "blk." + name.substr(kLayers.size(), dot - kLayers.size()) + ".";
    convert_layer_tensor(name.substr(dot + 1), dims, std::move(values));
  }

  void convert_layer_tensor(const std::string& name, std::vector<std::uint64_t> dims,
                            Values values) {
    if (const std::size_t experts = name.find("experts."); experts != std::string::npos) {
      return convert_experts(name.substr(experts + 8), dims, std::move(values));
    }
    if (name == "post_attention_layernorm.weight") {
      const bool renamed = hybrid_ || type_ == "gpt_oss";
      gguf_.tensor(prefix_ + (renamed ? "post_attention_norm.weight" : "ffn_norm.weight"), dims,
                   values);
      return;
    }
    if (name == "mlp.shared_expert_gate.weight") {
      gguf_.tensor(prefix_ + "ffn_gate_inp_shexp.weight", {dims[0]}, values);
      return;
    }
    if (name == "linear_attn.in_proj_qkvz.weight") return convert_fused(dims[0], values);
    if (name == "linear_attn.A_log") {
      for (float& value : values) value = -std::exp(value);
    }
    if (name == "linear_attn.conv1d.weight") dims.erase(dims.begin() + 1);
    if (type_.starts_with("qwen3_5")) tile(name, dims[0], values);
    const bool rotated = name == "self_attn.q_proj.weight" || name == "self_attn.k_proj.weight";
    if (type_ == "mixtral" && rotated) values = interleave_rotated(values, dims[0]);
    gguf_.tensor(prefix_ + kLayerNames.at(name), dims, values);
  }

  // Elements i and head_dim/2 + i of a head become neighbours.
  [[nodiscard]] Values interleave_rotated(const Values& values, std::size_t cols) const {
    const std::size_t dim = number("head_dim");
    std::vector<std::size_t> order;
    for (std::size_t head = 0; head < values.size() / cols; head += dim) {
      for (std::size_t i = 0; i < dim / 2; ++i) {
        order.push_back(head + i);
        order.push_back(head + dim / 2 + i);
      }
    }
    return reorder_rows(values, cols, 1, order);
  }

  // Puts the value heads of a delta net in their order.
  void tile(const std::string& name, std::size_t cols, Values& values) const {
    const std::size_t dim = number("linear_value_head_dim");
    const auto tail = [&](std::size_t columns) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(2 * key_size() * columns);
      const Values heads = reorder_rows(Values(begin, values.end()), columns, dim, tiled_heads());
      std::copy(heads.begin(), heads.end(), begin);
    };
    if (name == "linear_attn.in_proj_qkv.weight" || name == "linear_attn.conv1d.weight") {
      tail(cols);
    } else if (name == "linear_attn.in_proj_z.weight") {
      values = reorder_rows(values, cols, dim, tiled_heads());
    } else if (name == "linear_attn.in_proj_b.weight" || name == "linear_attn.in_proj_a.weight") {
      values = reorder_rows(values, cols, 1, tiled_heads());
    } else if (name == "linear_attn.A_log" || name == "linear_attn.dt_bias") {
      values = reorder_rows(values, 1, 1, tiled_heads());
    } else if (name == "linear_attn.out_proj.weight") {
      const std::size_t rows = values.size() / cols;
      values = transpose(reorder_rows(transpose(values, rows, cols), rows, dim, tiled_heads()),
                         cols, rows);
    }
  }

  // Qwen3-Next: query, key, values and z of each key head become all queries, keys, values; z.
  void convert_fused(std::size_t cols, const Values& values) {
    const std::size_t heads = number("linear_num_key_heads");
    const std::size_t keys = key_size() / heads;
    const std::size_t head_values = value_size() / heads;
    Values qkv;
    Values z;
    std::size_t first = 0;
    for (const std::size_t width : {keys, keys, head_values, head_values}) {
      Values& to = first == 2 * keys + head_values ? z : qkv;
      for (std::size_t h = 0; h < heads; ++h) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(
                                                (h * 2 * (keys + head_values) + first) * cols);
        to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(width * cols));
      }
      first += width;
    }
    gguf_.tensor(prefix_ + "attn_qkv.weight", {cols, qkv.size() / cols}, qkv);
    gguf_.tensor(prefix_ + "attn_gate.weight", {cols, z.size() / cols}, z);
  }

  // `name` is what follows "experts.".
  void convert_experts(const std::string& name, const std::vector<std::uint64_t>& dims,
                       Values values) {
    const bool oss = type_ == "gpt_oss";
    if (name == "gate_up_proj" || name == "gate_up_proj_bias") {
      const bool bias = name.ends_with("_bias");
      const std::size_t cols = bias ? 1 : oss ? dims[1] : dims[0];
      if (oss && !bias) values = transpose_each(values, dims);
      return divide(prefix_, bias ? ".bias" : ".weight", cols, values, oss ? 1 : 0);
    }
    if (name == "down_proj" || name == "down_proj_bias") {
      const bool transposed = oss && name == "down_proj";
      if (transposed) values = transpose_each(values, dims);
      gguf_.tensor(prefix_ + kLayerNames.at("mlp.experts." + name),
                   transposed ? std::vector{dims[1], dims[0], dims[2]} : dims, values);
      return;
    }
    const std::map<std::string, std::string> parts = {{"gate_proj", "gate"}, {"up_proj", "up"},
                                                      {"down_proj", "down"}, {"w1", "gate"},
                                                      {"w3", "up"},          {"w2", "down"}};
    const std::size_t dot = name.find('.');
    const std::string part = name.substr(dot + 1, name.rfind('.') - dot - 1);
    Stack& stack = stacks_[prefix_ + "ffn_" + parts.at(part) + "_exps.weight"];
    stack.cols = dims[0];
    const std::size_t expert = std::stoul(name) * values.size();
    stack.values.resize(experts_ * values.size());
    std::copy(values.begin(), values.end(),
              stack.values.begin() + static_cast<std::ptrdiff_t>(expert));
  }

  // [experts, rows, cols] → [experts, cols, rows]
  [[nodiscard]] static Values transpose_each(const Values& values,
                                             const std::vector<std::uint64_t>& dims) {
    Values to;
    const std::size_t size = dims[0] * dims[1];
    for (std::size_t first = 0; first < values.size(); first += size) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
      const Values one =
          transpose(Values(begin, begin + static_cast<std::ptrdiff_t>(size)), dims[1], dims[0]);
      to.insert(to.end(), one.begin(), one.end());
    }
    return to;
  }

  // Gates and ups [experts, 2·inner, cols] apart: one after the other, or rows in turn.
  void divide(const std::string& prefix, const std::string& suffix, std::size_t cols,
              const Values& values, std::size_t in_turn) {
    const std::size_t rows = values.size() / cols / experts_;
    Values parts[2];
    for (std::size_t r = 0; r < values.size() / cols; ++r) {
      const std::size_t row = r % rows;
      Values& to = parts[in_turn != 0 ? row % 2 : row / (rows / 2)];
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(r * cols);
      to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(cols));
    }
    const char* const names[] = {"ffn_gate_exps", "ffn_up_exps"};
    for (std::size_t p = 0; p < 2; ++p) {
      std::vector<std::uint64_t> dims = {cols, rows / 2, experts_};
      if (suffix == ".bias") dims.erase(dims.begin());
      gguf_.tensor(prefix + names[p] + suffix, dims, parts[p]);
    }
  }

  // Consecutive nibbles become the two halves of a block; gates and ups in turn come apart.
  void convert_mxfp4(const file::SafetensorsTensor& blocks) {
    const std::string module = blocks.name.substr(0, blocks.name.size() - 7);
    const Bytes scales = directory_.find(module + "_scales")->data;
    const std::size_t rows = blocks.shape[1];
    const std::size_t groups = blocks.shape[2];
    const bool both = module.ends_with("gate_up_proj");
    std::string parts[2];
    for (std::size_t g = 0; g < experts_ * rows * groups; ++g) {
      std::string& to = parts[both ? g / groups % 2 : 0];
      to.push_back(static_cast<char>(scales[g]));
      const auto code = [&](std::size_t value) {
        const auto byte = static_cast<unsigned>(blocks.data[g * 16 + value / 2]);
        return value % 2 == 0 ? byte & 15 : byte >> 4;
      };
      for (std::size_t i = 0; i < 16; ++i)
        to.push_back(static_cast<char>(code(i) | code(i + 16) << 4));
    }
    const std::size_t dot = module.find('.', 13);
    const std::string prefix = "blk." + module.substr(13, dot - 13) + ".";
    const char* const names[] = {both ? "ffn_gate_exps.weight" : "ffn_down_exps.weight",
                                 "ffn_up_exps.weight"};
    for (std::size_t p = 0; p < (both ? 2 : 1); ++p) {
      gguf_.tensor({.name = prefix + names[p],
                    .dims = {groups * 32, both ? rows / 2 : rows, experts_},
                    .type = pack::find_format("MXFP4")->ggml_type,
                    .data = parts[p],
                    .offset = {}});
    }
  }

  const file::HfDirectory& directory_;
  const file::Json& config_;
  std::string type_;
  bool hybrid_ = false;
  std::uint64_t experts_ = 0;
  std::string prefix_;
  std::map<std::string, Stack> stacks_;
  GgufBuilder gguf_;
};

}  // namespace

GgufBuilder mixture_gguf(const file::HfDirectory& directory) {
  return Converter(directory).convert();
}

}  // namespace espalier::test
