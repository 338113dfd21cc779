#include <algorithm>

#include "base/printable.h"
#include "text/encoder.h"
#include "text/merge.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

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
  BytePairEncoder(TextTokens tokens, BytePairOptions options)
      : tokens_(std::move(tokens)), options_(std::move(options)) {
    // Byte-level text that a vocabulary lacks is left out, as all implementations do.
    if (options_.spelling == Spelling::kByteLevel) tokens_.unknown = kNoToken;
  }

  Status read_merges(const Vocabulary& vocabulary);

  void encode(std::string_view word, std::vector<TokenId>& ids) const override {
    const bool newlines = word.find_first_not_of('\n') == std::string_view::npos;
    if (options_.ignore_merges || (options_.newline_tokens && newlines)) {
      if (const TokenId id = tokens_.find(word); id != kNoToken) {
        ids.push_back(id);
        return;
      }
    }
    Merger merger;
    add_symbols(word, merger);
    merger.merge([this](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
      const auto found = merges_.find(pair_key(left.id, right.id));
      if (found == merges_.end()) return std::nullopt;
      return found->second;
    });
    merger.for_each([&](const Symbol& symbol) { ids.push_back(symbol.id); });
  }

 private:
  // The token that the unit of `word` at [begin, begin + length) is before anything is merged.
  TokenId find_unit(std::string_view word, std::size_t begin, std::size_t length) const {
    const std::string_view unit = word.substr(begin, length);
    if (options_.spelling == Spelling::kByteLevel) {
      return tokens_.bytes[static_cast<unsigned char>(unit[0])];
    }
    const bool prefix = begin > 0 && !options_.subword_prefix.empty();
    const bool suffix = begin + length == word.size() && !options_.word_suffix.empty();
    if (!prefix && !suffix) return tokens_.find(unit);
    std::string spelled(prefix ? options_.subword_prefix : "");
    spelled += unit;
    return tokens_.find(suffix ? spelled.append(options_.word_suffix) : spelled);
  }

  void add_symbols(std::string_view word, Merger& merger) const {
    const bool characters = options_.spelling != Spelling::kByteLevel;
    std::vector<TokenId> bytes;
    std::size_t unknown = 0;  // bytes that are to become an unknown token
    const auto add_unknown = [&](std::size_t end) {
      if (unknown > 0) merger.add(tokens_.unknown, end - unknown, unknown);
      unknown = 0;
    };
    for (std::size_t begin = 0; begin < word.size();) {
      const std::size_t length =
          characters ? std::max<std::size_t>(utf8_character(word.substr(begin)), 1) : 1;
      const TokenId id = find_unit(word, begin, length);
      bytes.clear();
      if (id != kNoToken) {
        add_unknown(begin);
        merger.add(id, begin, length);
      } else if (characters && tokens_.append_all_bytes(word.substr(begin, length), bytes)) {
        add_unknown(begin);
        for (std::size_t i = 0; i < length; ++i) merger.add(bytes[i], begin + i, 1);
      } else if (tokens_.unknown != kNoToken) {
        if (!options_.fuse_unknown) add_unknown(begin);
        unknown += length;
      }
      begin += length;
    }
    add_unknown(word.size());
  }

  TextTokens tokens_;
  BytePairOptions options_;
  std::unordered_map<std::uint64_t, Merge, PairHash> merges_;
};

Status BytePairEncoder::read_merges(const Vocabulary& vocabulary) {
  // Parts of a merge may be tokens that text cannot become; then the merge is of no use.
  std::unordered_map<std::string_view, TokenId> others;
  for (std::size_t i = 0; i < tokens_.pieces.size(); ++i) {
    if (is_text(vocabulary.types[i], options_.spelling)) continue;
    others.emplace(tokens_.pieces[i], static_cast<TokenId>(i));
  }
  merges_.reserve(vocabulary.merges.size());
  for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const MergeRule& merge = vocabulary.merges[rank];
    const auto wrong = [&](std::string_view expected) {
      return input_error("{}: {}: merge {} is '{} {}', expected {}", vocabulary.name,
                         vocabulary.merges_name, rank, printable(merge.left),
                         printable(merge.right), expected);
    };
    const auto left = spelled_bytes(merge.left, options_.spelling);
    const auto right = spelled_bytes(merge.right, options_.spelling);
    if (!left || !right) return wrong("texts in the byte-level alphabet");
    bool is_known = true, is_useful = true;
    const auto find = [&](std::string_view piece) {
      const TokenId id = tokens_.find(piece);
      is_useful &= id != kNoToken;
      is_known &= id != kNoToken || others.contains(piece);
      return id;
    };
    const std::size_t prefix = std::min(options_.subword_prefix.size(), right->size());
    const TokenId a = find(*left), b = find(*right), both = find(*left + right->substr(prefix));
    if (!is_known) return wrong("both texts and their concatenation to be tokens");
    if (is_useful) merges_.emplace(pair_key(a, b), Merge{static_cast<std::uint32_t>(rank), both});
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<TextEncoder>> byte_pair_encoder(const Vocabulary& vocabulary,
                                                       std::vector<std::string> pieces,
                                                       BytePairOptions options) {
  TextTokens tokens(vocabulary, std::move(pieces), options.spelling);
  auto encoder = std::make_unique<BytePairEncoder>(std::move(tokens), std::move(options));
  ESPALIER_CHECK(encoder->read_merges(vocabulary));
  return std::unique_ptr<TextEncoder>(std::move(encoder));
}

}  // namespace espalier::text
