// A vocabulary as a model file lists it, before a tokenizer is made of it. Everything is a view:
// what the views look at must outlive the vocabulary, but not the tokenizers made of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "file/gguf.h"

namespace espalier::text {

using TokenId = std::int32_t;

// Numbers of tokenizer.ggml.token_type.
enum class TokenType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,      // stands for text that no token spells
  kControl = 3,      // structure, such as the end of a turn; only a caller can ask for it
  kUserDefined = 4,  // found in any text, whole, before anything else is
  kUnused = 5,
  kByte = 6,  // one byte, spelled <0x0A>
};

// How token texts spell bytes.
enum class Spelling {
  kByteLevel,      // one printable character per byte, as GPT-2 does: "Ġthe" is " the"
  kSentencePiece,  // as they are, but U+2581 for a space: "▁the" is " the"
};

struct Vocabulary {
  std::string name;  // the file's, for messages
  std::vector<std::string_view> tokens;
  std::vector<TokenType> types;          // one per token
  std::vector<double> scores;            // one per token, or none
  std::vector<std::string_view> merges;  // "left right", the first to be applied first

  std::optional<TokenId> bos, eos, unknown;
  std::vector<TokenId> ends;  // every other token that ends a generation
};

// Reads the keys tokenizer.ggml.{tokens, token_type, scores, merges, *_token_id}. Lists that are
// missing, of another type or of another length than `tokens`, and ids outside of it, are errors.
[[nodiscard]] Result<Vocabulary> read_vocabulary(const file::Gguf& gguf);

// The bytes that each token stands for. A byte-level text with a character that stands for no byte
// is taken as it is, as are those of control and user-defined tokens.
[[nodiscard]] Result<std::vector<std::string>> token_pieces(const Vocabulary& vocabulary,
                                                            Spelling spelling);

// The bytes of one token text, or nothing if a character in it stands for no byte.
[[nodiscard]] std::optional<std::string> spelled_bytes(std::string_view text, Spelling spelling);

// `text` with a space for every U+2581, which SentencePiece does not tell apart.
[[nodiscard]] std::string with_spaces(std::string_view text);

}  // namespace espalier::text
