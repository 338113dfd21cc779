// The tokens that text can become, found by their spelling.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/vocabulary.h"

namespace espalier::text {

inline constexpr TokenId kNoToken = -1;

// Control tokens are not among what text can become, however they are spelled. Byte tokens are only
// with Spelling::kPlain: there the text <0x0A> becomes the token of that name, as in Hugging Face's
// tokenizers.
[[nodiscard]] bool is_text(TokenType type, Spelling spelling);

struct TextTokens {
  std::vector<std::string> pieces;                      // by id
  std::unordered_map<std::string_view, TokenId> words;  // of equal pieces the first normal one
  std::array<TokenId, 256> bytes;                       // the tokens of single bytes
  TokenId unknown = kNoToken;

  TextTokens(const Vocabulary& vocabulary, std::vector<std::string> pieces, Spelling spelling);
  TextTokens(TextTokens&&) noexcept = default;
  TextTokens& operator=(TextTokens&&) noexcept = default;
  TextTokens(const TextTokens&) = delete;
  TextTokens& operator=(const TextTokens&) = delete;
  ~TextTokens() = default;

  // The token that is spelled `piece`, or kNoToken.
  [[nodiscard]] TokenId find(std::string_view piece) const;

  // Appends the tokens of single bytes; false, and nothing appended, if one of them has none.
  bool append_all_bytes(std::string_view text, std::vector<TokenId>& ids) const;
};

}  // namespace espalier::text
