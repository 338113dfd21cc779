#include "support/vocabularies.h"

#include <fmt/format.h>

namespace espalier::test {

using text::TokenType;

void OwnedVocabulary::add(std::string token, TokenType type, double score) {
  tokens.push_back(std::move(token));
  types.push_back(type);
  scores.push_back(score);
}

text::Vocabulary OwnedVocabulary::view() const {
  text::Vocabulary vocabulary;
  vocabulary.name = "small";
  vocabulary.tokens.assign(tokens.begin(), tokens.end());
  vocabulary.types = types;
  vocabulary.scores = scores;
  for (const std::string& merge : merges) vocabulary.merges.push_back(*text::split_merge(merge));
  vocabulary.merges_name = "merges";
  return vocabulary;
}

std::string byte_level(unsigned char byte) {
  // Printable bytes keep their code, the others are numbered from U+0100 on.
  const auto printable = [](unsigned b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  };
  unsigned code = byte;
  if (!printable(byte)) {
    code = 0x100;
    for (unsigned b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

std::string byte_level(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += byte_level(static_cast<unsigned char>(byte));
  return text;
}

OwnedVocabulary small_byte_pair_vocabulary() {
  OwnedVocabulary vocabulary;
  for (unsigned byte = 0; byte < 256; ++byte) {
    vocabulary.add(byte_level(static_cast<unsigned char>(byte)));
  }
  const auto merge = [&](std::string_view left, std::string_view right) {
    vocabulary.merges.push_back(byte_level(left) + " " + byte_level(right));
    vocabulary.add(byte_level(std::string(left) + std::string(right)));
  };
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{
           {"t", "h"},           {"th", "e"},      {" ", "the"},         {" ", " "},
           {"  ", "  "},         {"x", "x"},       {"xx", "xx"},         {"xxxx", "xxxx"},
           {"1", "2"},           {"12", "3"},      {"a", "b"},           {"b", "a"},
           {"ab", "a"},          {"\n", "\n"},     {"'", "s"},           {"\xe4", "\xb8"},
           {"\xe4\xb8", "\xad"}, {"\xf0", "\x9f"}, {"\xf0\x9f", "\x98"}, {"\xcc", "\x81"},
           {"e", "\xcc\x81"},    {"\xff", "\xff"}}) {
    merge(left, right);
  }
  vocabulary.add("<tag>", TokenType::kUserDefined);
  vocabulary.add("<s>", TokenType::kControl);
  vocabulary.add("</s>", TokenType::kControl);
  return vocabulary;
}

OwnedVocabulary small_sentence_piece_vocabulary() {
  OwnedVocabulary vocabulary;
  vocabulary.add("<unk>", TokenType::kUnknown);
  vocabulary.add("<s>", TokenType::kControl);
  vocabulary.add("</s>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.add(fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  }
  double score = 0;
  for (const char* word : {"th", "▁t", "the", "▁the", "▁▁", "▁▁▁▁", "xx", "xxxx", "xxxxxxxx", "12",
                           "ab", "ba", "aba", "中国", "éa", "\n\n", "▁",  "t",    "h",        "e",
                           "x",  "a",  "b",   "1",    "2",  "中",   "国", "é",    "\n"}) {
    vocabulary.add(word, TokenType::kNormal, score--);
  }
  vocabulary.add("<tag>", TokenType::kUserDefined);
  return vocabulary;
}

}  // namespace espalier::test
