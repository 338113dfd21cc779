// Text to token ids and back, as a model's own vocabulary defines it.
#pragma once

#include <cstdint>
#include <filesystem>
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

struct TokenizerParts;

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerParts parts);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

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
  [[nodiscard]] std::vector<TokenId> encode(std::span<const TextPart> parts,
                                            AddSpecial add_special) const;

  // The bytes of one token in the middle of a text, which may be a part of a UTF-8 character.
  [[nodiscard]] Result<std::string> piece(TokenId id, ControlTokens control) const;

  // The pieces joined: the text that ids spell, byte for byte. Ids out of range are errors.
  [[nodiscard]] Result<std::string> decode(std::span<const TokenId> ids,
                                           ControlTokens control) const;

  // The text that was encoded: as decode(), without the space that encode() puts before a text
  // where the vocabulary says so, and with U+FFFD for bytes that are not UTF-8 where a
  // tokenizer.json's decoder writes it.
  [[nodiscard]] Result<std::string> detokenize(std::span<const TokenId> ids,
                                               ControlTokens control = ControlTokens::kPrint) const;

  [[nodiscard]] std::size_t vocab_size() const;

  // True for tokens that end a generation: end of sequence, end of turn.
  [[nodiscard]] bool ends_generation(TokenId id) const;

  [[nodiscard]] std::optional<TokenId> begin_of_sequence() const;
  [[nodiscard]] std::optional<TokenId> end_of_sequence() const;

 private:
  [[nodiscard]] bool is_hidden(TokenId id) const;  // by ControlTokens::kSkip

  std::unique_ptr<const TokenizerParts> parts_;
};

// The tokenizer that a GGUF's tokenizer.ggml.* keys define; the file needs no tensors, and need not
// outlive the tokenizer. A missing tokenizer.ggml.pre means "default", with a warning.
[[nodiscard]] Result<std::unique_ptr<Tokenizer>> tokenizer_from_gguf(const file::Gguf& gguf);

// The tokenizer of a Hugging Face directory: its tokenizer.json, and if they are there
// tokenizer_config.json and special_tokens_map.json for the tokens that begin and end a text, and
// generation_config.json and config.json for all tokens that end a generation. The directory needs
// no weights.
[[nodiscard]] Result<std::unique_ptr<Tokenizer>> tokenizer_from_directory(
    const std::filesystem::path& directory);

// A tokenizer.json alone; `name` stands for it in messages. Tokens that end a generation are known
// by their names.
[[nodiscard]] Result<std::unique_ptr<Tokenizer>> tokenizer_from_json(Bytes bytes,
                                                                     const std::string& name);

// A template that makes a text of a conversation, in the language of Jinja.
struct NamedTemplate {
  std::string name;  // "default", "tool_use", "rag", …
  std::string source;
};

// The templates of a Hugging Face directory, from chat_template.jinja, tokenizer_config.json and
// chat_template.json in this order; of equal names the first is meant. None if there are none.
[[nodiscard]] Result<std::vector<NamedTemplate>> chat_templates(
    const std::filesystem::path& directory);

}  // namespace espalier::text
