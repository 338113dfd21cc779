#include "model/delta_net_block.h"

#include <cmath>

namespace espalier::model {
namespace {

using compute::GatedDeltaNet;

// The projections, which checkpoints fuse in different ways.
Status bind_inputs(const DecoderConfig& decoder, const DeltaNetConfig& c, const Modules& modules,
                   std::size_t layer, GatedDeltaNet& net) {
  const std::size_t values = c.value_heads * c.value_dim;
  const std::size_t channels = 2 * c.key_heads * c.key_dim + values;
  const auto has = [&](Module module) -> Result<bool> {
    ESPALIER_TRY(const auto found, modules.weights().find_matrix(modules.name(module, layer)));
    return found.has_value();
  };
  ESPALIER_TRY(const bool fused, has(Module::kDeltaFused));
  if (fused) {
    ESPALIER_TRY(net.qkvz,
                 modules.linear(Module::kDeltaFused, layer, channels + values, decoder.hidden));
  } else {
    ESPALIER_TRY(net.qkv,
                 modules.linear(Module::kDeltaQueryKeyValue, layer, channels, decoder.hidden));
    ESPALIER_TRY(net.z, modules.linear(Module::kDeltaGate, layer, values, decoder.hidden));
  }
  ESPALIER_TRY(const bool fused_gates, has(Module::kDeltaFusedWriteDecay));
  if (fused_gates) {
    ESPALIER_TRY(net.ba, modules.linear(Module::kDeltaFusedWriteDecay, layer, 2 * c.value_heads,
                                        decoder.hidden));
  } else {
    ESPALIER_TRY(net.b, modules.linear(Module::kDeltaWrite, layer, c.value_heads, decoder.hidden));
    ESPALIER_TRY(net.a, modules.linear(Module::kDeltaDecay, layer, c.value_heads, decoder.hidden));
  }
  return {};
}

// Checkpoints hold [channels, kernel].
Result<std::vector<float>> convolution_weight(const Modules& modules, std::size_t layer,
                                              std::size_t channels, std::size_t kernel) {
  const std::string name = fmt::format("{}.weight", modules.name(Module::kDeltaConvolution, layer));
  ESPALIER_TRY(const std::vector<float> stored, modules.weights().vector(name, channels * kernel));
  std::vector<float> weight(stored.size());
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t j = 0; j < kernel; ++j) weight[j * channels + c] = stored[c * kernel + j];
  }
  return weight;
}

}  // namespace

Result<DeltaNetBlock> DeltaNetBlock::bind(const DecoderConfig& decoder, const DeltaNetConfig& c,
                                          const Modules& modules, std::size_t layer) {
  DeltaNetBlock block;
  GatedDeltaNet& net = block.net_;
  const std::size_t values = c.value_heads * c.value_dim;
  const std::size_t channels = 2 * c.key_heads * c.key_dim + values;
  ESPALIER_CHECK(bind_inputs(decoder, c, modules, layer, net));
  net.convolution = {.channels = channels, .kernel = c.kernel, .weight = {}};
  ESPALIER_TRY(net.convolution.weight, convolution_weight(modules, layer, channels, c.kernel));

  net.rule = {.key_heads = c.key_heads,
              .value_heads = c.value_heads,
              .key_dim = c.key_dim,
              .value_dim = c.value_dim,
              .order = c.order,
              .scale = 1 / std::sqrt(static_cast<float>(c.key_dim)),
              .rate = {},
              .dt_bias = {}};
  const Weights& weights = modules.weights();
  ESPALIER_TRY(net.rule.rate,
               weights.vector(modules.name(Module::kDeltaRate, layer), c.value_heads));
  if (modules.convention() == Convention::kHuggingFace) {  // holds the logarithm
    for (float& rate : net.rule.rate) rate = -std::exp(rate);
  }
  ESPALIER_TRY(net.rule.dt_bias,
               weights.vector(modules.name(Module::kDeltaStepBias, layer), c.value_heads));
  // Unlike the others of these models, this norm does not multiply by 1 + w.
  ESPALIER_TRY(net.norm, modules.norm(Module::kDeltaNorm, layer, c.value_dim, 0));
  net.norm_epsilon = decoder.norm_epsilon;
  ESPALIER_TRY(net.output, modules.linear(Module::kDeltaOutput, layer, decoder.hidden, values));
  return block;
}

}  // namespace espalier::model
