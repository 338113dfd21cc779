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
#include "text/vocabulary.h"

namespace espalier::text {

// Whether the tokens that a vocabulary puts around a text (begin, end of sequence) are added.
enum class AddSpecial { kNo, kYes };

// Whether the spelling of a control token in the text (such as <|im_end|>) becomes that token, or
// stays text. Text from a user is encoded with kNo.
enum class ParseSpecial { kNo, kYes };

// A part of a text, and whether control tokens are looked for in it.
struct TextPart {
  std::string_view text;
  ParseSpecial parse_special = ParseSpecial::kNo;
};

// How decoding treats control tokens and those that end a generation: their spelling, or nothing.
enum class ControlTokens { kPrint, kSkip };

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Any bytes encode, broken UTF-8 too, and decode to the same bytes, apart from what a
  // vocabulary's own definition changes: Unicode normalization (Qwen), U+2581 for a space and a
  // space in front (SentencePiece). Bytes that a vocabulary has no token for are left out. Linear
  // in the length of `text`, but for a logarithm.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, AddSpecial add_special,
                                            ParseSpecial parse_special) const;

  // The same for a text that comes in parts, such as a chat template's own words and the messages
  // in it. Control tokens are found only where all of their spelling lies in parts that ask for
  // them. Everything else is encoded as one text across the borders, so that the ids are those of
  // the joined text unless that spells a control token which reaches into a part with kNo.
  [[nodiscard]] virtual std::vector<TokenId> encode(std::span<const TextPart> parts,
                                                    AddSpecial add_special) const = 0;

  // The bytes of one token, which may be a part of a UTF-8 character.
  [[nodiscard]] virtual Result<std::string> piece(TokenId id, ControlTokens control) const = 0;

  // The pieces joined: the text that ids spell, byte for byte. Ids out of range are errors.
  [[nodiscard]] Result<std::string> decode(std::span<const TokenId> ids,
                                           ControlTokens control) const;

  // The text that was encoded: as decode() with ControlTokens::kPrint, without the space that
  // encode() puts before a text where the vocabulary says so.
  [[nodiscard]] Result<std::string> detokenize(std::span<const TokenId> ids) const;

  [[nodiscard]] virtual std::size_t vocab_size() const = 0;

  // True for tokens that end a generation: end of sequence, end of turn.
  [[nodiscard]] virtual bool ends_generation(TokenId id) const = 0;

  [[nodiscard]] virtual std::optional<TokenId> begin_of_sequence() const = 0;
  [[nodiscard]] virtual std::optional<TokenId> end_of_sequence() const = 0;

  // True if encode() puts a space before a text.
  [[nodiscard]] virtual bool adds_space_prefix() const = 0;
};

// The tokenizer that a GGUF's tokenizer.ggml.* keys define; the file needs no tensors, and need not
// outlive the tokenizer. A missing tokenizer.ggml.pre means "default", with a warning.
[[nodiscard]] Result<std::unique_ptr<Tokenizer>> tokenizer_from_gguf(const file::Gguf& gguf);

}  // namespace espalier::text
