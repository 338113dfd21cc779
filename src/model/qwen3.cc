// Qwen3: no biases any more, but RMS norms of every query and key. Yang et al. (2025).
#include "model/qwen.h"

namespace espalier::model {
namespace {

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config, read_qwen(settings, weights));
  config.for_each_attention([](AttentionConfig& attention, std::size_t) {
    attention.head_norms = HeadNorms::kQueryAndKey;
  });
  return config;
}

}  // namespace

const Architecture kQwen3 = {
    .name = "qwen3", .model_types = {"qwen3", "qwen3_vl"}, .configure = configure};

}  // namespace espalier::model
