#include "text/encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/printable.h"
#include "text/merge.h"
#include "text/nfc.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

using PieceMap = std::unordered_map<std::string_view, TokenId>;

TokenId find_piece(const PieceMap& map, std::string_view piece) {
  const auto found = map.find(piece);
  return found == map.end() ? kNoToken : found->second;
}

// Control tokens are not among what text can become, however they are spelled.
bool is_text(TokenType type) {
  return type == TokenType::kNormal || type == TokenType::kUserDefined ||
         type == TokenType::kUnused;
}

// The tokens that text can become.
struct TextTokens {
  PieceMap words;  // of tokens that are spelled alike, the first normal one
  std::array<TokenId, 256> bytes;
  TokenId unknown = kNoToken;  // for bytes without a token; without it they are left out

  TextTokens(const Vocabulary& vocabulary, const std::vector<std::string>& pieces,
             Spelling spelling) {
    bytes.fill(kNoToken);
    // Byte-level text that a vocabulary lacks is left out, as all implementations do.
    if (spelling == Spelling::kSentencePiece) unknown = vocabulary.unknown.value_or(kNoToken);
    words.reserve(pieces.size());
    const auto add = [&](bool normal) {
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const TokenType type = vocabulary.types[i];
        if ((type == TokenType::kNormal) != normal || !is_text(type) || pieces[i].empty()) continue;
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
      TokenId& byte = bytes[static_cast<unsigned char>(pieces[i][0])];
      if (byte == kNoToken) byte = static_cast<TokenId>(i);
    }
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const char byte = static_cast<char>(i);
      const TokenId word = find_piece(words, {&byte, 1});
      if (bytes[i] == kNoToken || (spelling == Spelling::kByteLevel && word != kNoToken)) {
        bytes[i] = word;
      }
    }
  }

  // Appends the tokens of the single bytes of text that no other token spells.
  void append_bytes(std::string_view text, std::vector<TokenId>& ids) const {
    for (const char byte : text) {
      const TokenId id = bytes[static_cast<unsigned char>(byte)];
      if (id != kNoToken || unknown != kNoToken) ids.push_back(id != kNoToken ? id : unknown);
    }
  }

  // Adds the characters of `text` to `merger`; a byte that is not UTF-8 counts as one.
  void add_characters(std::string_view text, Merger& merger) const {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t length = std::max<std::size_t>(utf8_character(text.substr(begin)), 1);
      merger.add(find_piece(words, text.substr(begin, length)), begin, length);
      begin += length;
    }
  }

  void append_symbols(std::string_view text, const Merger& merger,
                      std::vector<TokenId>& ids) const {
    merger.for_each([&](const Symbol& symbol) {
      if (symbol.id != kNoToken) {
        ids.push_back(symbol.id);
      } else {
        append_bytes(text.substr(symbol.begin, symbol.length), ids);
      }
    });
  }
};

// Two ids as one number.
std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

struct PairHash {
  std::size_t operator()(std::uint64_t key) const {
    key *= 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio: spreads low bits over the word
    return key ^ key >> 32;
  }
};

class BytePairEncoder : public TextEncoder {
 public:
  BytePairEncoder(TextTokens tokens, PreTokenizer pre_tokenizer, const PreTokenizerSpec& pre)
      : tokens_(std::move(tokens)), pre_tokenizer_(std::move(pre_tokenizer)), pre_(pre) {}

  Status read_merges(const Vocabulary& vocabulary, const std::vector<std::string>& pieces);

  void encode(std::string_view text, std::vector<TokenId>& ids) const override {
    std::string prepared;
    if (pre_.spelling == Spelling::kSentencePiece) text = prepared = with_spaces(text);
    if (pre_.nfc) text = prepared = nfc(text);
    Merger merger;
    pre_tokenizer_.split(text, [&](std::string_view word) { encode_word(word, merger, ids); });
  }

 private:
  void encode_word(std::string_view word, Merger& merger, std::vector<TokenId>& ids) const {
    const bool newlines = word.find_first_not_of('\n') == std::string_view::npos;
    if (pre_.ignore_merges || (pre_.newline_tokens && newlines)) {
      if (const TokenId id = find_piece(tokens_.words, word); id != kNoToken) {
        ids.push_back(id);
        return;
      }
    }
    merger.clear();
    if (pre_.spelling == Spelling::kByteLevel) {
      for (std::size_t i = 0; i < word.size(); ++i) {
        merger.add(tokens_.bytes[static_cast<unsigned char>(word[i])], i, 1);
      }
    } else {
      tokens_.add_characters(word, merger);
    }
    merger.merge([this](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
      const auto found = merges_.find(pair_key(left.id, right.id));
      if (found == merges_.end()) return std::nullopt;
      return found->second;
    });
    tokens_.append_symbols(word, merger, ids);
  }

  TextTokens tokens_;
  PreTokenizer pre_tokenizer_;
  const PreTokenizerSpec& pre_;
  std::unordered_map<std::uint64_t, Merge, PairHash> merges_;
};

Status BytePairEncoder::read_merges(const Vocabulary& vocabulary,
                                    const std::vector<std::string>& pieces) {
  // Parts of a merge may be tokens that text cannot become; then the merge is of no use.
  PieceMap others;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!is_text(vocabulary.types[i])) others.emplace(pieces[i], static_cast<TokenId>(i));
  }
  merges_.reserve(vocabulary.merges.size());
  for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const std::string_view merge = vocabulary.merges[rank];
    const auto wrong = [&](std::string_view expected) {
      return input_error("{}: metadata key 'tokenizer.ggml.merges': merge {} is '{}', expected {}",
                         vocabulary.name, rank, printable(merge), expected);
    };
    const std::size_t space = merge.find(' ', 1);
    if (merge.empty() || space == std::string_view::npos || space + 1 == merge.size()) {
      return wrong("two texts with a space between them");
    }
    const auto left = spelled_bytes(merge.substr(0, space), pre_.spelling);
    const auto right = spelled_bytes(merge.substr(space + 1), pre_.spelling);
    if (!left || !right) return wrong("texts in the byte-level alphabet");
    bool is_known = true, is_useful = true;
    const auto find = [&](const std::string& piece) {
      const TokenId id = find_piece(tokens_.words, piece);
      is_useful &= id != kNoToken;
      is_known &= id != kNoToken || others.contains(piece);
      return id;
    };
    const TokenId a = find(*left), b = find(*right), both = find(*left + *right);
    if (!is_known) return wrong("both texts and their concatenation to be tokens");
    if (is_useful) merges_.emplace(pair_key(a, b), Merge{static_cast<std::uint32_t>(rank), both});
  }
  return {};
}

class SentencePieceEncoder : public TextEncoder {
 public:
  SentencePieceEncoder(TextTokens tokens, const std::vector<double>& scores,
                       const std::vector<std::string>& pieces)
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
    for (const std::string& piece : pieces) longest_ = std::max(longest_, piece.size());
  }

  void encode(std::string_view text, std::vector<TokenId>& ids) const override {
    const std::string spaced = with_spaces(text);
    const std::string_view all = spaced;
    Merger merger;
    tokens_.add_characters(all, merger);
    merger.merge([&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
      const std::size_t length = left.length + right.length;
      if (length > longest_) return std::nullopt;
      const TokenId id = find_piece(tokens_.words, all.substr(left.begin, length));
      if (id == kNoToken) return std::nullopt;
      return Merge{ranks_[static_cast<std::size_t>(id)], id};
    });
    tokens_.append_symbols(all, merger, ids);
  }

 private:
  TextTokens tokens_;
  std::vector<std::uint32_t> ranks_;  // 0 for the highest score; equal for equal scores
  std::size_t longest_ = 0;           // piece, in bytes
};

}  // namespace

Result<std::unique_ptr<TextEncoder>> byte_pair_encoder(const Vocabulary& vocabulary,
                                                       const std::vector<std::string>& pieces,
                                                       const PreTokenizerSpec& pre) {
  ESPALIER_TRY(PreTokenizer pre_tokenizer, PreTokenizer::compile(pre.steps));
  auto encoder = std::make_unique<BytePairEncoder>(TextTokens(vocabulary, pieces, pre.spelling),
                                                   std::move(pre_tokenizer), pre);
  ESPALIER_CHECK(encoder->read_merges(vocabulary, pieces));
  return std::unique_ptr<TextEncoder>(std::move(encoder));
}

Result<std::unique_ptr<TextEncoder>> sentence_piece_encoder(
    const Vocabulary& vocabulary, const std::vector<std::string>& pieces) {
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
  return std::unique_ptr<TextEncoder>(std::make_unique<SentencePieceEncoder>(
      TextTokens(vocabulary, pieces, Spelling::kSentencePiece), vocabulary.scores, pieces));
}

}  // namespace espalier::text
