// Text to token ids and back, as a model's own vocabulary defines it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "file/gguf.h"

namespace espalier::text {

using TokenId = std::int32_t;

// Whether the tokens that a vocabulary puts around a text (begin, end of sequence) are added.
enum class AddSpecial { kNo, kYes };

// Whether the spelling of a control token in the text (such as <|im_end|>) becomes that token, or
// stays text. Text from a user is encoded with kNo.
enum class ParseSpecial { kNo, kYes };

// How decoding treats control tokens: their spelling, or nothing.
enum class ControlTokens { kPrint, kSkip };

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Any bytes encode, broken UTF-8 too. Linear in the length of `text`.
  [[nodiscard]] virtual std::vector<TokenId> encode(std::string_view text, AddSpecial add_special,
                                                    ParseSpecial parse_special) const = 0;

  // The bytes of one token, which may be a part of a UTF-8 character.
  [[nodiscard]] virtual Result<std::string> piece(TokenId id, ControlTokens control) const = 0;

  // The pieces joined: the text that ids spell, byte for byte. Ids out of range are errors.
  [[nodiscard]] Result<std::string> decode(std::span<const TokenId> ids,
                                           ControlTokens control) const;

  [[nodiscard]] virtual std::size_t vocab_size() const = 0;

  // True for tokens that end a generation: end of sequence, end of turn.
  [[nodiscard]] virtual bool ends_generation(TokenId id) const = 0;

  [[nodiscard]] virtual std::optional<TokenId> begin_of_sequence() const = 0;
  [[nodiscard]] virtual std::optional<TokenId> end_of_sequence() const = 0;
};

// The tokenizer that a GGUF's tokenizer.ggml.* keys define; the file needs no tensors.
[[nodiscard]] Result<std::unique_ptr<Tokenizer>> tokenizer_from_gguf(const file::Gguf& gguf);

}  // namespace espalier::text
