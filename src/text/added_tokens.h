// Finds the spellings of tokens that are taken out of a text whole, before anything else is done.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/trie.h"
#include "text/vocabulary.h"

namespace espalier::text {

struct AddedToken {
  std::string text;
  TokenId id = 0;
  bool control = false;      // only a caller can ask for it
  bool single_word = false;  // not where a letter or digit stands beside it
  bool strips_left = false;  // white space before it goes with it
  bool strips_right = false;
  bool normalized = false;  // looked for in the normalized text, and normalized itself
};

class AddedTokens {
 public:
  // Where a token was found, with the white space that goes with it.
  struct Match {
    std::size_t begin, end;
    TokenId id;
  };

  // Whether the token, spelled at [begin, begin + length), may be taken.
  using Allowed =
      std::function<bool(const AddedToken& token, std::size_t begin, std::size_t length)>;

  AddedTokens() = default;

  // Empty texts are left out; of equal texts the first counts.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // The first token at or after `from`; of those that begin there, the longest that is allowed.
  // One that should be a word of its own and is not makes its place plain text.
  [[nodiscard]] std::optional<Match> find(std::string_view text, std::size_t from,
                                          const Allowed& allowed) const;

  [[nodiscard]] bool empty() const { return tokens_.empty(); }

 private:
  std::vector<AddedToken> tokens_;
  Trie trie_;  // of indices into tokens_
};

}  // namespace espalier::text
