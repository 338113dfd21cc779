// A model's tokenizer: the tokenizer.ggml.* keys of GGUF, and the tokenizer.json and its companions
// of directories, each from the other.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "file/gguf.h"
#include "file/gguf_writer.h"
#include "file/hf_directory.h"
#include "file/json.h"

namespace espalier::convert {

// Files of a directory by name: tokenizer.json, tokenizer_config.json, generation_config.json and,
// where the model has one, chat_template.jinja; none where `gguf` has no tokenizer. `config`, the
// config.json, gets the ids of special tokens. Error: a tokenizer that these files cannot express;
// that is tried out on a text of all kinds of characters.
[[nodiscard]] Result<std::map<std::string, std::string>> to_tokenizer_files(const file::Gguf& gguf,
                                                                            file::Json& config);

// Sets tokenizer.ggml.* and tokenizer.chat_template from the directory's files; nothing where it
// has no tokenizer.json. `vocab_size` is how many tokens the embedding has: ids without a token get
// one that is never used. Errors: as above.
[[nodiscard]] Status set_tokenizer(const file::HfDirectory& directory, std::uint64_t vocab_size,
                                   file::GgufMetadata& metadata);

}  // namespace espalier::convert
