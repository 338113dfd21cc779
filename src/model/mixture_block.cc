#include "model/mixture_block.h"

#include "pack/transposed.h"

namespace espalier::model {
namespace {

using compute::GatedMlp;
using compute::GateUp;
using compute::Linear;

// What a form of checkpoint calls its experts: modules of all experts stacked, {} being the layer,
// or one for each, the second {} being the expert. Gate and up are two modules or one.
struct ExpertNames {
  std::string_view gate, up;  // the latter is empty where `gate` has both
  std::string_view down;
  bool stacked = true;
};

constexpr ExpertNames kGgufNames[] = {
    {"blk.{}.ffn_gate_exps", "blk.{}.ffn_up_exps", "blk.{}.ffn_down_exps"},
    {"blk.{}.ffn_gate_up_exps", "", "blk.{}.ffn_down_exps"},
    {"blk.{}.ffn_gate.{}", "blk.{}.ffn_up.{}", "blk.{}.ffn_down.{}", false},  // of early 2024
};

constexpr ExpertNames kHuggingFaceNames[] = {
    {"model.layers.{}.mlp.experts.{}.gate_proj", "model.layers.{}.mlp.experts.{}.up_proj",
     "model.layers.{}.mlp.experts.{}.down_proj", false},
    {"model.layers.{}.block_sparse_moe.experts.{}.w1",
     "model.layers.{}.block_sparse_moe.experts.{}.w3",
     "model.layers.{}.block_sparse_moe.experts.{}.w2", false},  // Mixtral
    {"model.layers.{}.mlp.experts.gate_up_proj", "",
     "model.layers.{}.mlp.experts.down_proj"},  // Transformers 5, gpt-oss
    {"model.layers.{}.mlp.experts.gate_proj", "model.layers.{}.mlp.experts.up_proj",
     "model.layers.{}.mlp.experts.down_proj"},  // gpt-oss by MLX
    {"model.layers.{}.mlp.switch_mlp.gate_proj", "model.layers.{}.mlp.switch_mlp.up_proj",
     "model.layers.{}.mlp.switch_mlp.down_proj"},  // others by MLX
    {"model.layers.{}.block_sparse_moe.switch_mlp.gate_proj",
     "model.layers.{}.block_sparse_moe.switch_mlp.up_proj",
     "model.layers.{}.block_sparse_moe.switch_mlp.down_proj"},
};

// Binds the experts of one layer.
class ExpertBinder {
 public:
  ExpertBinder(const DecoderConfig& decoder, const MixtureConfig& config, const Modules& modules,
               std::size_t layer)
      : hidden_(decoder.hidden), config_(config), modules_(modules), layer_(layer) {}

  Result<std::vector<GatedMlp>> bind() {
    ESPALIER_TRY(names_, find_names());
    std::vector<GatedMlp> experts(config_.experts);
    for (GatedMlp& expert : experts) expert.activation = config_.activation;
    const bool fused = names_.up.empty();
    ESPALIER_CHECK(bind(names_.down, hidden_, config_.hidden, experts, &GatedMlp::down));
    ESPALIER_CHECK(bind(names_.gate, fused ? 2 * config_.hidden : config_.hidden, hidden_, experts,
                        &GatedMlp::gate));
    if (!fused) {
      ESPALIER_CHECK(bind(names_.up, config_.hidden, hidden_, experts, &GatedMlp::up));
      return experts;
    }
    for (GatedMlp& expert : experts) ESPALIER_CHECK(divide(expert));
    return experts;
  }

 private:
  [[nodiscard]] std::string name(std::string_view pattern, std::size_t expert) const {
    return fmt::format(fmt::runtime(pattern), layer_, expert);
  }

  // The names that the checkpoint uses: the first ones whose gate it has. Where it has none, the
  // usual ones say what is missing.
  Result<ExpertNames> find_names() const {
    const std::span<const ExpertNames> known = modules_.convention() == Convention::kGguf
                                                   ? std::span<const ExpertNames>(kGgufNames)
                                                   : kHuggingFaceNames;
    for (const ExpertNames& names : known) {
      ESPALIER_TRY(const auto gate, modules_.weights().find_matrix(name(names.gate, 0)));
      if (gate) return names;
    }
    return known.front();
  }

  // Sets `part` of all experts to [outputs, inputs] of the module that `pattern` names.
  Status bind(std::string_view pattern, std::size_t outputs, std::size_t inputs,
              std::vector<GatedMlp>& experts, Linear GatedMlp::*part) const {
    if (names_.stacked) return bind_stack(name(pattern, 0), outputs, inputs, experts, part);
    for (std::size_t e = 0; e < experts.size(); ++e) {
      ESPALIER_TRY(experts[e].*part, modules_.weights().linear(name(pattern, e), outputs, inputs));
    }
    return {};
  }

  Status bind_stack(const std::string& module, std::size_t outputs, std::size_t inputs,
                    std::vector<GatedMlp>& experts, Linear GatedMlp::*part) const {
    const Weights& weights = modules_.weights();
    ESPALIER_TRY(const auto found, weights.find_matrix(module));
    const bool transposed = found && config_.stacks == ExpertStacks::kGptOss && names_.up.empty() &&
                            pack::find_format(fmt::format("{}-T", found->format->name)) != nullptr;
    const std::size_t rows = transposed ? inputs : outputs;
    ESPALIER_TRY(const pack::Matrix stack,
                 weights.matrix(module, experts.size() * rows, transposed ? outputs : inputs));
    ESPALIER_TRY(const std::vector<float> biases, stacked_biases(module, outputs));
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const auto view = pack::row_view(stack, e * rows, rows);
      if (!view) {
        return input_error("{}: the experts in '{}' are in {}, of which a stack cannot be divided",
                           weights.source(), weights.stored_name(module), stack.format->name);
      }
      Linear& linear = experts[e].*part;
      linear.weight = *view;
      if (transposed) {
        ESPALIER_TRY(linear.weight, pack::transposed(*view));
      }
      if (!biases.empty()) {
        const auto bias = biases.begin() + static_cast<std::ptrdiff_t>(e * outputs);
        linear.bias.assign(bias, bias + static_cast<std::ptrdiff_t>(outputs));
      }
    }
    return {};
  }

  // NAME.bias or NAME_bias [experts, outputs]; empty without.
  Result<std::vector<float>> stacked_biases(const std::string& module, std::size_t outputs) const {
    for (const std::string& bias : {module + ".bias", module + "_bias"}) {
      ESPALIER_TRY(const auto found, modules_.weights().find_vector(bias));
      if (found) return modules_.weights().vector(bias, config_.experts * outputs);
    }
    return std::vector<float>();
  }

  // Gate and up out of the matrix that has both.
  Status divide(GatedMlp& expert) const {
    if (config_.stacks == ExpertStacks::kGptOss) {
      expert.layout = GateUp::kInterleaved;
      return {};
    }
    const Linear both = std::move(expert.gate);
    expert.gate = {};
    for (Linear* part : {&expert.gate, &expert.up}) {
      const std::size_t first = part == &expert.gate ? 0 : config_.hidden;
      const auto view = pack::row_view(both.weight, first, config_.hidden);
      if (!view) {
        return input_error("{}: '{}' is in {}, of which gates and ups cannot be divided",
                           modules_.weights().source(),
                           modules_.weights().stored_name(name(names_.gate, 0)),
                           both.weight.format->name);
      }
      part->weight = *view;
      if (!both.bias.empty()) {
        const auto bias = both.bias.begin() + static_cast<std::ptrdiff_t>(first);
        part->bias.assign(bias, bias + static_cast<std::ptrdiff_t>(config_.hidden));
      }
    }
    return {};
  }

  std::size_t hidden_;
  const MixtureConfig& config_;
  const Modules& modules_;
  std::size_t layer_;
  ExpertNames names_;
};

Result<GatedMlp> bind_shared(const DecoderConfig& decoder, const MixtureConfig& config,
                             const Modules& modules, std::size_t layer) {
  GatedMlp shared = {.gate = {}, .up = {}, .down = {}, .activation = config.activation};
  ESPALIER_TRY(shared.gate,
               modules.linear(Module::kSharedGate, layer, config.shared_hidden, decoder.hidden));
  ESPALIER_TRY(shared.up,
               modules.linear(Module::kSharedUp, layer, config.shared_hidden, decoder.hidden));
  ESPALIER_TRY(shared.down,
               modules.linear(Module::kSharedDown, layer, decoder.hidden, config.shared_hidden));
  return shared;
}

}  // namespace

Result<MixtureBlock> MixtureBlock::bind(const DecoderConfig& decoder, const MixtureConfig& config,
                                        const Modules& modules, std::size_t layer) {
  MixtureBlock block;
  compute::MixtureOfExperts& mixture = block.mixture_;
  mixture.router.top_k = config.top_k;
  mixture.router.renormalize = config.renormalize;
  // The router comes first: it shows that a file has as many experts as it says.
  ESPALIER_TRY(mixture.router.linear,
               modules.linear(Module::kRouter, layer, config.experts, decoder.hidden));
  ESPALIER_TRY(mixture.experts, ExpertBinder(decoder, config, modules, layer).bind());
  if (config.shared_hidden == 0) return block;
  ESPALIER_TRY(mixture.shared, bind_shared(decoder, config, modules, layer));
  ESPALIER_TRY(mixture.shared_gate,
               modules.linear(Module::kSharedExpertGate, layer, 1, decoder.hidden));
  return block;
}

}  // namespace espalier::model
