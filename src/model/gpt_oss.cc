// gpt-oss: a mixture of experts in every layer with biases and a clamped SwiGLU, attention with a
// sink per head that slides in every other layer, YaRN. OpenAI (2025).
#include "model/mixture_config.h"

namespace espalier::model {
namespace {

constexpr Key kSwigluLimit = {"", "swiglu_limit"};

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config,
               read_decoder(settings, weights, {.head_dim = 64, .yarn_whole_pairs = false}));
  ESPALIER_TRY(const std::vector<LayerKind> kinds,
               read_layer_kinds(settings, config.layers.size(), 2));
  ESPALIER_TRY(const std::size_t window, read_window(settings));
  config.for_each_attention([&](AttentionConfig& attention, std::size_t l) {
    attention.sinks = Sinks::kOnePerHead;
    attention.window = kinds[l] == LayerKind::kSliding ? window : 0;
  });

  const std::size_t mlp_hidden = std::get<MlpConfig>(config.layers[0].mlp).hidden;
  ESPALIER_TRY(MixtureConfig mixture, read_mixture(settings, {.hidden = mlp_hidden}));
  mixture.activation = compute::Activation::kClampedSwiglu;
  if (settings.convention() == Convention::kHuggingFace) mixture.stacks = ExpertStacks::kGptOss;
  ESPALIER_TRY(const double limit, settings.positive(kSwigluLimit, 7));
  if (limit != 7) {
    return input_error("{}: found {}, expected 7", settings.place(kSwigluLimit), limit);
  }
  for (LayerConfig& layer : config.layers) layer.mlp = mixture;
  return config;
}

constexpr ModuleName kNames[] = {
    {Module::kMlpNorm, "blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"},
    {Module::kRouter, "blk.{}.ffn_gate_inp", "model.layers.{}.mlp.router"},
};

}  // namespace

const Architecture kGptOss = {
    .name = "gpt-oss", .model_types = {"gpt_oss"}, .configure = configure, .names = kNames};

}  // namespace espalier::model
