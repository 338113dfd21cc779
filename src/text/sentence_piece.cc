#include <algorithm>
#include <cmath>
#include <numeric>

#include "text/encoder.h"
#include "text/merge.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

class SentencePieceEncoder : public TextEncoder {
 public:
  SentencePieceEncoder(TextTokens tokens, const std::vector<double>& scores)
      : tokens_(std::move(tokens)), ranks_(scores.size()) {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    std::uint32_t rank = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0 && scores[order[i]] != scores[order[i - 1]]) ++rank;
      ranks_[order[i]] = rank;
    }
    for (const std::string& piece : tokens_.pieces) longest_ = std::max(longest_, piece.size());
  }

  void encode(std::string_view word, std::vector<TokenId>& ids) const override {
    Merger merger;
    for (std::size_t begin = 0; begin < word.size();) {
      const std::size_t length = std::max<std::size_t>(utf8_character(word.substr(begin)), 1);
      merger.add(tokens_.find(word.substr(begin, length)), begin, length);
      begin += length;
    }
    merger.merge([&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
      const std::size_t length = left.length + right.length;
      if (length > longest_) return std::nullopt;
      const TokenId id = tokens_.find(word.substr(left.begin, length));
      if (id == kNoToken) return std::nullopt;
      return Merge{ranks_[static_cast<std::size_t>(id)], id};
    });
    merger.for_each([&](const Symbol& symbol) {
      if (symbol.id != kNoToken) return ids.push_back(symbol.id);
      for (const char byte : word.substr(symbol.begin, symbol.length)) {
        const TokenId id = tokens_.bytes[static_cast<unsigned char>(byte)];
        if (id != kNoToken || tokens_.unknown != kNoToken) {
          ids.push_back(id != kNoToken ? id : tokens_.unknown);
        }
      }
    });
  }

 private:
  TextTokens tokens_;
  std::vector<std::uint32_t> ranks_;  // 0 for the highest score; equal for equal scores
  std::size_t longest_ = 0;           // piece, in bytes
};

}  // namespace

Result<std::unique_ptr<TextEncoder>> sentence_piece_encoder(const Vocabulary& vocabulary,
                                                            std::vector<std::string> pieces) {
  constexpr std::string_view kScores = "tokenizer.ggml.scores";
  if (vocabulary.scores.size() != vocabulary.tokens.size()) {
    return input_error("{}: metadata key '{}' is missing, expected a score for each token",
                       vocabulary.name, kScores);
  }
  for (std::size_t i = 0; i < vocabulary.scores.size(); ++i) {
    if (std::isnan(vocabulary.scores[i])) {
      return input_error("{}: metadata key '{}' is NaN for token {}, expected a number",
                         vocabulary.name, kScores, i);
    }
  }
  TextTokens tokens(vocabulary, std::move(pieces), Spelling::kSentencePiece);
  return std::unique_ptr<TextEncoder>(
      std::make_unique<SentencePieceEncoder>(std::move(tokens), vocabulary.scores));
}

}  // namespace espalier::text
