// A Hugging Face directory as GGUF, by the habits of llama.cpp's converter, which the project's own
// tables of names and keys have no part in.
#pragma once

#include "file/hf_directory.h"
#include "support/gguf_builder.h"

namespace espalier::test {

// Of a plain directory (BF16) of one of the dense architectures with a config.json in the new
// style. Beyond the converter's keys: the scale of Gemma's scores, the windows of Mistral and Qwen2
// and which layers have one, all of which it leaves out or takes from the sizes that are published.
[[nodiscard]] GgufBuilder converted_gguf(const file::HfDirectory& directory);

}  // namespace espalier::test
