// Small vocabularies in memory for tests and fuzzers: every byte and a few merges or words.
#pragma once

#include <string>
#include <vector>

#include "text/vocabulary.h"

namespace espalier::test {

// What a Vocabulary looks at, and the vocabulary.
struct OwnedVocabulary {
  std::vector<std::string> tokens, merges;
  std::vector<text::TokenType> types;
  std::vector<double> scores;

  void add(std::string token, text::TokenType type = text::TokenType::kNormal, double score = 0);
  [[nodiscard]] text::Vocabulary view() const;
};

// The byte-level character of a byte, as GPT-2 spells it.
std::string byte_level(unsigned char byte);
std::string byte_level(std::string_view bytes);

// 256 bytes, merges of letters, digits and spaces, of two bytes of Chinese and emoji, a
// user-defined token <tag> and control tokens <s> and </s>.
OwnedVocabulary small_byte_pair_vocabulary();

// <unk>, <s>, </s>, 256 byte tokens, then characters and words with scores.
OwnedVocabulary small_sentence_piece_vocabulary();

}  // namespace espalier::test
