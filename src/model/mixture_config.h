// Mixtures of experts in a checkpoint's configuration.
#pragma once

#include "model/decoder_config.h"

namespace espalier::model {

// What holds where a checkpoint is silent.
struct MixtureDefaults {
  std::size_t hidden = 0;  // of an expert; 0: it must say
  bool renormalize = true;
};

// Numbers of experts and their sizes. Errors: keys that are missing, of another type or out of
// range, more experts for a token than there are.
[[nodiscard]] Result<MixtureConfig> read_mixture(const Settings& settings,
                                                 const MixtureDefaults& defaults = {});

}  // namespace espalier::model
