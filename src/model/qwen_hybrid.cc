#include "model/qwen_hybrid.h"

#include <algorithm>

#include "model/mixture_config.h"

namespace espalier::model {
namespace {

constexpr std::uint64_t kMaxHeadDim = 1024;  // of a delta rule: its memory has the square
constexpr std::uint64_t kMaxKernel = 64;

constexpr Key kKeyHeads = {"ssm.group_count", "linear_num_key_heads"};
constexpr Key kValueHeads = {"ssm.time_step_rank", "linear_num_value_heads"};
constexpr Key kKeyDim = {"ssm.state_size", "linear_key_head_dim"};
constexpr Key kValueDim = {"", "linear_value_head_dim"};
constexpr Key kValueSize = {"ssm.inner_size", ""};
constexpr Key kKernel = {"ssm.conv_kernel", "linear_conv_kernel_dim"};
constexpr Key kLayerTypes = {"", "layer_types"};
constexpr Key kRecurrentLayers = {"attention.recurrent_layers", ""};
constexpr Key kFullInterval = {"full_attention_interval", "full_attention_interval"};
constexpr Key kDraftLayers = {"nextn_predict_layers", ""};
constexpr Key kSharedHidden = {"expert_shared_feed_forward_length",
                               "shared_expert_intermediate_size"};

Result<DeltaNetConfig> read_delta_net(const Settings& settings, compute::KeyHeadOrder gguf_order) {
  DeltaNetConfig net;
  const bool gguf = settings.convention() == Convention::kGguf;
  if (gguf) net.order = gguf_order;
  ESPALIER_TRY(net.key_heads, settings.count(kKeyHeads, kMaxHeads));
  ESPALIER_TRY(net.value_heads, settings.count(kValueHeads, kMaxHeads));
  if (net.value_heads % net.key_heads != 0) {
    return input_error("{}: found {}, expected a multiple of the {} key heads",
                       settings.place(kValueHeads), net.value_heads, net.key_heads);
  }
  ESPALIER_TRY(net.key_dim, settings.count(kKeyDim, kMaxHeadDim));
  ESPALIER_TRY(net.kernel, settings.count(kKernel, kMaxKernel));
  if (!gguf) {
    ESPALIER_TRY(net.value_dim, settings.count(kValueDim, kMaxHeadDim));
    return net;
  }
  ESPALIER_TRY(const std::size_t size, settings.count(kValueSize, kMaxHeadDim * net.value_heads));
  if (size % net.value_heads != 0) {
    return input_error("{}: found {}, expected a multiple of the {} value heads",
                       settings.place(kValueSize), size, net.value_heads);
  }
  net.value_dim = size / net.value_heads;
  return net;
}

// By the file's list, or else every fourth layer attends.
Result<std::vector<LayerKind>> read_hybrid_kinds(const Settings& settings, std::size_t layers) {
  if (settings.is_array(kLayerTypes)) return read_layer_kinds(settings, layers, 0);
  std::vector<LayerKind> kinds(layers, LayerKind::kLinear);
  ESPALIER_TRY(const auto recurrent, settings.numbers(kRecurrentLayers));
  if (recurrent) {
    if (recurrent->size() < layers) {
      return input_error("{} lists {} layers, expected {}", settings.place(kRecurrentLayers),
                         recurrent->size(), layers);
    }
    for (std::size_t l = 0; l < layers; ++l) {
      if ((*recurrent)[l] == 0) kinds[l] = LayerKind::kFull;
    }
    return kinds;
  }
  ESPALIER_TRY(const std::size_t interval, settings.count(kFullInterval, kMaxLayers, 4));
  for (std::size_t l = interval - 1; l < layers; l += interval) kinds[l] = LayerKind::kFull;
  return kinds;
}

// GGUF counts the layers that draft further tokens among the others.
Status leave_out_draft_layers(const Settings& settings, DecoderConfig& config) {
  ESPALIER_TRY(const auto draft, settings.unsigned_integer(kDraftLayers));
  if (draft.value_or(0) >= config.layers.size()) {
    return input_error("{}: found {}, expected less than the {} layers",
                       settings.place(kDraftLayers), *draft, config.layers.size());
  }
  config.draft_layers = draft.value_or(0);
  config.layers.resize(config.layers.size() - config.draft_layers);
  return {};
}

// MLX adds the 1 to norms when it converts a model. That it did shows in convolutions, whose last
// axis it moves: [channels, kernel, 1].
Result<bool> has_whole_norms(const Settings& settings, const Weights& weights,
                             const std::vector<LayerKind>& kinds) {
  const auto linear = std::find(kinds.begin(), kinds.end(), LayerKind::kLinear);
  const std::string name = module_name({}, settings.convention(), Module::kDeltaConvolution,
                                       static_cast<std::size_t>(linear - kinds.begin()));
  ESPALIER_TRY(const auto convolution, weights.find_matrix(name));
  return convolution && convolution->cols == 1;
}

}  // namespace

Result<DecoderConfig> read_qwen_hybrid(const Settings& settings, const Weights& weights,
                                       compute::KeyHeadOrder gguf_order) {
  ESPALIER_TRY(DecoderConfig config, read_decoder(settings, weights));
  ESPALIER_CHECK(leave_out_draft_layers(settings, config));
  ESPALIER_TRY(const DeltaNetConfig net, read_delta_net(settings, gguf_order));
  ESPALIER_TRY(const std::vector<LayerKind> kinds,
               read_hybrid_kinds(settings, config.layers.size()));
  for (std::size_t l = 0; l < kinds.size(); ++l) {
    if (kinds[l] == LayerKind::kLinear) config.layers[l].mixer = net;
  }
  ESPALIER_TRY(config.whole_norms, has_whole_norms(settings, weights, kinds));
  config.for_each_attention([](AttentionConfig& attention, std::size_t) {
    attention.head_norms = HeadNorms::kQueryAndKey;
    attention.output_gate = OutputGate::kSigmoid;
  });
  return config;
}

Result<DecoderConfig> read_qwen_hybrid_moe(const Settings& settings, const Weights& weights,
                                           compute::KeyHeadOrder gguf_order) {
  ESPALIER_TRY(DecoderConfig config, read_qwen_hybrid(settings, weights, gguf_order));
  ESPALIER_TRY(MixtureConfig mixture, read_mixture(settings));
  ESPALIER_TRY(mixture.shared_hidden, settings.count(kSharedHidden, kMaxWidth));
  for (LayerConfig& layer : config.layers) layer.mlp = mixture;
  return config;
}

}  // namespace espalier::model
