// Weights out of each container.
#pragma once

#include <memory>

#include "file/gguf.h"
#include "file/hf_directory.h"
#include "model/weights.h"

namespace espalier::model {

// The container must outlive the result.
[[nodiscard]] std::unique_ptr<Weights> container_weights(const file::Gguf& gguf);
[[nodiscard]] std::unique_ptr<Weights> container_weights(const file::HfDirectory& directory);

}  // namespace espalier::model
