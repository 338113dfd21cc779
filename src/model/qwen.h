// What the generations of Qwen share.
#pragma once

#include "model/decoder_config.h"

namespace espalier::model {

// A decoder whose layers slide only where config.json says use_sliding_window, and then those from
// max_window_layers on unless it lists them; in GGUF, those that are listed.
[[nodiscard]] Result<DecoderConfig> read_qwen(const Settings& settings, const Weights& weights);

}  // namespace espalier::model
