#include "text/text_tokens.h"

#include <algorithm>

namespace espalier::text {

bool is_text(TokenType type, Spelling spelling) {
  return type == TokenType::kNormal || type == TokenType::kUserDefined ||
         type == TokenType::kUnused || (type == TokenType::kByte && spelling == Spelling::kPlain);
}

TextTokens::TextTokens(const Vocabulary& vocabulary, std::vector<std::string> spelled,
                       Spelling spelling)
    : pieces(std::move(spelled)), unknown(vocabulary.unknown.value_or(kNoToken)) {
  bytes.fill(kNoToken);
  words.reserve(pieces.size());
  const auto add = [&](bool normal) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const TokenType type = vocabulary.types[i];
      if ((type == TokenType::kNormal) != normal || !is_text(type, spelling)) continue;
      if (pieces[i].empty()) continue;
      // A byte-level text that spells no bytes is not reached by any.
      if (normal && spelling == Spelling::kByteLevel &&
          !spelled_bytes(vocabulary.tokens[i], spelling)) {
        continue;
      }
      words.emplace(pieces[i], static_cast<TokenId>(i));
    }
  };
  add(true);
  add(false);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (vocabulary.types[i] != TokenType::kByte) continue;
    const char value = byte_token(vocabulary.tokens[i]).value_or('\0');
    TokenId& byte = bytes[static_cast<unsigned char>(value)];
    if (byte == kNoToken) byte = static_cast<TokenId>(i);
  }
  if (spelling == Spelling::kPlain) return;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char byte = static_cast<char>(i);
    const TokenId word = find({&byte, 1});
    if (bytes[i] == kNoToken || (spelling == Spelling::kByteLevel && word != kNoToken)) {
      bytes[i] = word;
    }
  }
}

TokenId TextTokens::find(std::string_view piece) const {
  const auto found = words.find(piece);
  return found == words.end() ? kNoToken : found->second;
}

bool TextTokens::append_all_bytes(std::string_view text, std::vector<TokenId>& ids) const {
  const auto token = [&](char byte) { return bytes[static_cast<unsigned char>(byte)]; };
  if (std::any_of(text.begin(), text.end(), [&](char b) { return token(b) == kNoToken; })) {
    return false;
  }
  std::transform(text.begin(), text.end(), std::back_inserter(ids), token);
  return true;
}

}  // namespace espalier::text
