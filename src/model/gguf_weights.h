// Weights out of a GGUF file.
#pragma once

#include <memory>

#include "file/gguf.h"
#include "model/weights.h"

namespace espalier::model {

// `gguf` must outlive the result.
[[nodiscard]] std::unique_ptr<Weights> gguf_weights(const file::Gguf& gguf);

}  // namespace espalier::model
