// Directories of mixtures of experts and hybrid models as the GGUF files that ggml's converter
// makes of them: other names, experts stacked, norms with their 1 added, heads and halves in other
// orders.
#pragma once

#include "file/hf_directory.h"
#include "support/gguf_builder.h"

namespace espalier::test {

// Plain weights become F32, MXFP4 stays what it is.
[[nodiscard]] GgufBuilder mixture_gguf(const file::HfDirectory& directory);

}  // namespace espalier::test
