// Plain text to token ids, with special tokens already taken out. Encoders look at the pieces that
// they are made from, which must outlive them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/pre_tokenizer.h"
#include "text/vocabulary.h"

namespace espalier::text {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Appends the ids of any bytes to `ids`.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids) const = 0;
};

// Byte pair encoding: words are cut by `pre`, then symbols merged in the order of the list of
// merges (Sennrich et al. 2016; on bytes: Radford et al. 2019). With Spelling::kSentencePiece the
// first symbols are characters instead of bytes, and characters that are no token become bytes.
// Merges that are not of two tokens into a third are errors.
[[nodiscard]] Result<std::unique_ptr<TextEncoder>> byte_pair_encoder(
    const Vocabulary& vocabulary, const std::vector<std::string>& pieces,
    const PreTokenizerSpec& pre);

// SentencePiece's variant of byte pair encoding: characters are merged into the token of the
// highest score, and what is no token becomes bytes. A vocabulary without scores is an error.
[[nodiscard]] Result<std::unique_ptr<TextEncoder>> sentence_piece_encoder(
    const Vocabulary& vocabulary, const std::vector<std::string>& pieces);

}  // namespace espalier::text
