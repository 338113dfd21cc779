// A vocabulary as a model file lists it, before a tokenizer is made of it. Everything is a view:
// what the views look at must outlive the vocabulary, but not the tokenizers made of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

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

// True for tokens that are structure, not text.
[[nodiscard]] constexpr bool is_control(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

// What SentencePiece writes for a space.
inline constexpr std::string_view kSpaceMark = "\u2581";

// How token texts spell bytes.
enum class Spelling {
  kByteLevel,      // one printable character per byte, as GPT-2 does: "Ġthe" is " the"
  kSentencePiece,  // as they are, but U+2581 for a space: "▁the" is " the"
  kPlain,          // as they are
};

// A merge: what stands beside each other becomes one.
struct MergeRule {
  std::string_view left, right;
};

// "left right" as a merge; nothing if the text is something else.
[[nodiscard]] std::optional<MergeRule> split_merge(std::string_view text);

struct Vocabulary {
  std::string name;                      // the file's, for messages
  std::vector<std::string_view> tokens;  // by id; empty where an id has none
  std::vector<TokenType> types;          // one per token
  std::vector<double> scores;            // one per token, or none
  std::vector<MergeRule> merges;         // the first to be applied first
  std::string merges_name;               // where they come from, for messages

  std::optional<TokenId> bos, eos, unknown;
  std::vector<TokenId> ends;  // every other token that ends a generation
};

// The most tokens that a vocabulary may have.
inline constexpr std::size_t kMaxTokens = std::size_t{1} << 30;

// Adds to `ends` the tokens of these types that end a generation by their names, such as
// <|im_end|>. GGUF has no list of them.
void find_ends(Vocabulary& vocabulary, std::span<const TokenType> types);

// The byte of a byte token's text, <0x0A>.
[[nodiscard]] std::optional<char> byte_token(std::string_view text);

// How each token is spelled: the bytes that it stands for. A byte-level text with a character that
// stands for no byte is taken as it is, as are those of control and user-defined tokens, and with
// Spelling::kPlain all.
[[nodiscard]] Result<std::vector<std::string>> token_pieces(const Vocabulary& vocabulary,
                                                            Spelling spelling);

// The bytes of one token text, or nothing if a character in it stands for no byte.
[[nodiscard]] std::optional<std::string> spelled_bytes(std::string_view text, Spelling spelling);

// The byte-level characters of bytes.
[[nodiscard]] std::string byte_level_spelling(std::string_view bytes);

// `text` with a space for every U+2581, which SentencePiece does not tell apart.
[[nodiscard]] std::string with_spaces(std::string_view text);

}  // namespace espalier::text
