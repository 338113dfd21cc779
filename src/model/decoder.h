// The decoder that all architectures are: embedding, layers around a residual stream, a norm, and a
// head that makes logits.
#pragma once

#include <memory>

#include "model/decoder_config.h"
#include "model/model.h"
#include "model/weights.h"

namespace espalier::model {

// A decoder of `config` with the tensors of `weights`, which must outlive it. Errors: missing
// tensors, tensors of the wrong shape, more layers than the configuration says.
[[nodiscard]] Result<std::unique_ptr<Model>> load_decoder(const Architecture& architecture,
                                                          DecoderConfig config,
                                                          const Weights& weights,
                                                          Convention convention);

}  // namespace espalier::model
