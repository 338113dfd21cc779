// A model's configuration: GGUF metadata and config.json, each from the other.
#pragma once

#include "convert/names.h"
#include "file/gguf.h"
#include "file/gguf_writer.h"
#include "file/hf_directory.h"
#include "file/json.h"

namespace espalier::convert {

// The sizes of the model on either side. Errors: keys that are missing or of another type.
[[nodiscard]] Result<Sizes> read_sizes(const file::Gguf& gguf, const Architecture& architecture);
[[nodiscard]] Result<Sizes> read_sizes(const file::HfDirectory& directory);

// What config.json says of the architecture: sizes, norms and rotary embedding. Errors: as above,
// and rotary frequencies that config.json has no way to say.
[[nodiscard]] Result<file::Json> to_config(const file::Gguf& gguf,
                                           const Architecture& architecture);

// The same as metadata; `rope_factors` gets what GGUF keeps as a tensor (Llama 3's rope_freqs), if
// the model has such.
[[nodiscard]] Result<file::GgufMetadata> to_metadata(const file::HfDirectory& directory,
                                                     const Architecture& architecture,
                                                     std::vector<float>& rope_factors);

// A float as JSON: the shortest decimal that is this float.
[[nodiscard]] file::Json float_json(float value);

}  // namespace espalier::convert
