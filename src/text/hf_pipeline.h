// The steps of a tokenizer that a tokenizer.json describes: normalizer, pre_tokenizer,
// post_processor and decoder, each an object with a "type" or a Sequence of them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "file/json.h"
#include "text/tokenizer_parts.h"

namespace espalier::text {

// Each of these reads one key of the document; an absent or null key means no steps. Errors: a type
// that is not known, missing or wrong parameters, patterns that cannot be compiled, and steps that
// together could make a text grow without bounds.
[[nodiscard]] Result<Normalizer> read_normalizer(const file::JsonObject& document);

struct PreTokenizing {
  PreTokenizer pre_tokenizer;
  Spelling spelling = Spelling::kPlain;  // kByteLevel if words come out as bytes
};
[[nodiscard]] Result<PreTokenizing> read_pre_tokenizer(const file::JsonObject& document);

// The ids that a post_processor puts around one text.
struct Template {
  std::vector<TokenId> before, after;
};
[[nodiscard]] Result<Template> read_post_processor(const file::JsonObject& document);

// What a decoder makes of tokens.
struct Decoding {
  bool byte_level = false;     // tokens spell bytes, but for added ones
  bool byte_fallback = false;  // tokens such as <0x0A> are bytes
  std::vector<std::function<std::string(std::string)>> token_steps;  // what follows, in order
  bool drops_first_spaces = false;
  std::vector<Trim> trims;

  // The bytes that the token stands for.
  [[nodiscard]] std::string piece(std::string_view token, bool added) const;
};
[[nodiscard]] Result<Decoding> read_decoder(const file::JsonObject& document);

}  // namespace espalier::text
