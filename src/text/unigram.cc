#include <algorithm>
#include <cmath>
#include <limits>

#include "base/printable.h"
#include "text/encoder.h"
#include "text/text_tokens.h"
#include "text/trie.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

constexpr double kUnknownPenalty = 10;
constexpr double kMaxScore = 1e30;

class UnigramEncoder : public TextEncoder {
 public:
  UnigramEncoder(TextTokens tokens, const std::vector<double>& scores)
      : tokens_(std::move(tokens)),
        scores_(scores),
        unknown_score_(*std::min_element(scores.begin(), scores.end()) - kUnknownPenalty) {
    std::vector<Trie::Entry> entries;
    entries.reserve(tokens_.words.size());
    for (const auto& [piece, id] : tokens_.words) entries.push_back({piece, id});
    trie_ = Trie(std::move(entries));
  }

  void encode(std::string_view word, std::vector<TokenId>& ids) const override {
    // The best way to each byte that a character ends with (Viterbi).
    std::vector<Step> best(word.size() + 1);
    best[0].score = 0;
    for (std::size_t begin = 0; begin < word.size();) {
      const std::size_t character = std::max<std::size_t>(utf8_character(word.substr(begin)), 1);
      bool is_known = false;
      const auto consider = [&](std::size_t length, TokenId id, double score) {
        Step& step = best[begin + length];
        if (best[begin].score + score > step.score) {
          step = {best[begin].score + score, begin, id};
        }
      };
      trie_.for_each_prefix(word.substr(begin), [&](std::size_t length, TokenId id) {
        is_known |= length == character;
        consider(length, id, scores_[static_cast<std::size_t>(id)]);
      });
      if (!is_known) consider(character, tokens_.unknown, unknown_score_);
      begin += character;
    }
    append_path(word, best, ids);
  }

 private:
  struct Step {
    double score = -std::numeric_limits<double>::infinity();
    std::size_t begin = 0;  // of the token that leads here
    TokenId id = kNoToken;
  };

  void append_path(std::string_view word, std::vector<Step>& best,
                   std::vector<TokenId>& ids) const {
    // From the end to the beginning the path is known; its ends are kept to walk it forwards.
    std::vector<std::size_t> ends;
    for (std::size_t end = word.size(); end > 0; end = best[end].begin) ends.push_back(end);
    for (std::size_t i = ends.size(); i-- > 0;) {
      const Step& step = best[ends[i]];
      if (step.id != tokens_.unknown) {
        ids.push_back(step.id);
        continue;
      }
      while (i > 0 && best[ends[i - 1]].id == tokens_.unknown) --i;
      if (!tokens_.append_all_bytes(word.substr(step.begin, ends[i] - step.begin), ids)) {
        ids.push_back(tokens_.unknown);
      }
    }
  }

  TextTokens tokens_;
  std::vector<double> scores_;
  double unknown_score_;
  Trie trie_;
};

}  // namespace

Result<std::unique_ptr<TextEncoder>> unigram_encoder(const Vocabulary& vocabulary,
                                                     std::vector<std::string> pieces) {
  if (vocabulary.scores.empty()) {
    return input_error("{}: the vocabulary is empty", vocabulary.name);
  }
  for (std::size_t i = 0; i < vocabulary.scores.size(); ++i) {
    if (pieces[i].size() > kMaxUnigramPieceBytes) {
      return input_error("{}: token {}, '{}', has {} bytes, at most {} are read", vocabulary.name,
                         i, printable(pieces[i]), pieces[i].size(), kMaxUnigramPieceBytes);
    }
    // Sums of scores must stay numbers, however long a text.
    if (!(std::abs(vocabulary.scores[i]) <= kMaxScore)) {
      return input_error("{}: the score of token {} is {}, expected -{} to {}", vocabulary.name, i,
                         vocabulary.scores[i], kMaxScore, kMaxScore);
    }
  }
  if (!vocabulary.unknown) {
    return input_error(
        "{}: there is no unknown token, expected one for characters that no token "
        "spells",
        vocabulary.name);
  }
  TextTokens tokens(vocabulary, std::move(pieces), Spelling::kPlain);
  return std::unique_ptr<TextEncoder>(
      std::make_unique<UnigramEncoder>(std::move(tokens), vocabulary.scores));
}

}  // namespace espalier::text
