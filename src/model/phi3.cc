// Phi-3, 3.5 and 4-mini: a Llama whose checkpoints hold query, key and value as one matrix, and
// gate and up as another; long contexts by LongRoPE. Abdin et al. (2024).
#include "model/decoder_config.h"

namespace espalier::model {
namespace {

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config, read_decoder(settings, weights));
  ESPALIER_TRY(const std::size_t window, read_window(settings));
  config.for_each_attention(
      [&](AttentionConfig& attention, std::size_t) { attention.window = window; });
  return config;
}

}  // namespace

const Architecture kPhi3 = {.name = "phi3", .model_types = {"phi3"}, .configure = configure};

}  // namespace espalier::model
