// What a tokenizer is made of, whichever file it comes from.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/encoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace espalier::text {

// What detokenize() takes off a text: some characters at its ends, if they are there.
struct Trim {
  std::string character;
  std::size_t start = 0, stop = 0;  // at most so many of them
};

void apply(const Trim& trim, std::string& text);

struct TokenizerParts {
  // Encoding, in this order: tokens are taken out of the text; what lies between them is
  // normalized; tokens are taken out of that; the rest is cut into words; words become ids.
  AddedTokens added;
  Normalizer normalizer;
  AddedTokens added_normalized;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TextEncoder> encoder;
  std::vector<TokenId> before, after;  // what AddSpecial::kYes puts around a text

  // Decoding.
  std::vector<std::string> pieces;  // by id: the bytes of each token in the middle of a text
  std::vector<TokenType> types;     // by id
  bool drops_first_spaces = false;  // of the first token, if it is text
  // What detokenize() makes of bytes that are not UTF-8. By id, if any: the tokens that stand for a
  // byte; a row of them is UTF-8 as a whole or U+FFFD for each. And whether what remains of them in
  // the text becomes U+FFFD too.
  std::vector<bool> byte_tokens;
  bool replaces_broken = false;
  std::vector<Trim> trims;

  std::optional<TokenId> bos, eos;
  std::vector<bool> ends;  // by id

  // Sets types, bos, eos and ends.
  void set_vocabulary(const Vocabulary& vocabulary);
};

}  // namespace espalier::text
