// Words to token ids, with special tokens already taken out and the text normalized and cut.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/vocabulary.h"

namespace espalier::text {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Appends the ids of any bytes to `ids`. Linear in the length of `word`, but for a logarithm.
  virtual void encode(std::string_view word, std::vector<TokenId>& ids) const = 0;
};

// The encoders below are given a vocabulary, whose types say what text can become, and how its
// tokens are spelled (token_pieces). Control tokens never are what text becomes.

struct BytePairOptions {
  Spelling spelling = Spelling::kByteLevel;
  bool ignore_merges = false;   // a word that is a token becomes that token without merging
  bool newline_tokens = false;  // as ignore_merges, for words of newlines only
  // The first symbols are characters instead of bytes unless the spelling is kByteLevel. Those that
  // are no token become the tokens of their bytes, if there are byte tokens for all of them; else
  // the unknown token, or nothing where there is none.
  bool fuse_unknown = false;   // one unknown token for unknown characters that touch
  std::string subword_prefix;  // of each symbol but a word's first
  std::string word_suffix;     // of a word's last symbol
};

// Byte pair encoding: symbols of a word are merged in the order of the list of merges (Sennrich et
// al. 2016; on bytes: Radford et al. 2019). Merges that are not of two tokens into a third are
// errors.
[[nodiscard]] Result<std::unique_ptr<TextEncoder>> byte_pair_encoder(
    const Vocabulary& vocabulary, std::vector<std::string> pieces, BytePairOptions options);

// SentencePiece's variant of byte pair encoding: characters are merged into the token of the
// highest score, and what is no token becomes bytes. A vocabulary without scores is an error.
[[nodiscard]] Result<std::unique_ptr<TextEncoder>> sentence_piece_encoder(
    const Vocabulary& vocabulary, std::vector<std::string> pieces);

inline constexpr std::size_t kMaxUnigramPieceBytes = 1024;

// A unigram language model (Kudo 2018): of all ways to spell a word in tokens, the one whose scores
// have the largest sum. A character that is no token counts as the lowest score less 10; unknown
// characters that touch become the tokens of their bytes, if there are byte tokens for all of them,
// else one unknown token. Errors: a piece of more than kMaxUnigramPieceBytes, a score that is no
// number, no unknown token.
[[nodiscard]] Result<std::unique_ptr<TextEncoder>> unigram_encoder(const Vocabulary& vocabulary,
                                                                   std::vector<std::string> pieces);

}  // namespace espalier::text
