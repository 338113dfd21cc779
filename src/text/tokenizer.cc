#include "text/tokenizer.h"

#include <algorithm>

#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

// Whether a token may be taken where `parsed` says in which stretches control tokens are found.
AddedTokens::Allowed allowed_in(const Ranges& parsed) {
  return [&parsed](const AddedToken& token, std::size_t begin, std::size_t length) {
    return !token.control || parsed.contain(begin, length);
  };
}

// Takes the tokens out of a text: plain(begin, end) is called for what lies between them.
template <typename Plain>
void take_out(const AddedTokens& added, const MarkedText& marked, const Plain& plain,
              std::vector<TokenId>& ids) {
  std::size_t done = 0;
  const AddedTokens::Allowed allowed = allowed_in(marked.parsed);
  while (!added.empty()) {
    const auto match = added.find(marked.text, done, allowed);
    if (!match) break;
    if (done < match->begin) plain(done, match->begin);
    ids.push_back(match->id);
    done = match->end;
  }
  if (done < marked.text.size()) plain(done, marked.text.size());
}

// Bytes that are UTF-8 as a whole, or U+FFFD for each of them.
std::string all_or_replaced(const std::string& bytes) {
  if (utf8_run(bytes) == bytes.size() && utf8_character(bytes) > 0) return bytes;
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) text += kReplacementCharacter;
  return text;
}

}  // namespace

void apply(const Trim& trim, std::string& text) {
  const std::size_t length = trim.character.size();
  std::size_t left = 0;
  for (std::size_t i = 0; i < trim.start; ++i) {
    if (text.compare(left, length, trim.character) != 0) break;
    left += length;
  }
  text.erase(0, left);
  for (std::size_t i = 0; i < trim.stop && text.ends_with(trim.character); ++i) {
    text.resize(text.size() - length);
  }
}

void TokenizerParts::set_vocabulary(const Vocabulary& vocabulary) {
  types = vocabulary.types;
  bos = vocabulary.bos;
  eos = vocabulary.eos;
  ends.assign(types.size(), false);
  for (const TokenId id : vocabulary.ends) ends[static_cast<std::size_t>(id)] = true;
  if (eos) ends[static_cast<std::size_t>(*eos)] = true;
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::make_unique<const TokenizerParts>(std::move(parts))) {}
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, AddSpecial add_special,
                                       ParseSpecial parse_special) const {
  const TextPart parts[] = {{text, parse_special}};
  return encode(parts, add_special);
}

std::vector<TokenId> Tokenizer::encode(std::span<const TextPart> parts,
                                       AddSpecial add_special) const {
  MarkedText all;
  for (const TextPart& part : parts) {
    if (part.parse_special == ParseSpecial::kYes) {
      all.parsed.add(all.text.size(), part.text.size());
    }
    all.text += part.text;
  }
  std::vector<TokenId> ids;
  if (add_special == AddSpecial::kYes) ids = parts_->before;
  const auto encode_stretch = [&](std::size_t begin, std::size_t end) {
    MarkedText stretch{all.text.substr(begin, end - begin), {}};
    if (begin == 0) stretch.lead = std::max<std::size_t>(utf8_character(stretch.text), 1);
    all.parsed.copy(begin, end - begin, stretch.parsed, 0);
    stretch = normalize(parts_->normalizer, std::move(stretch));
    const auto encode_words = [&](std::size_t first, std::size_t last) {
      parts_->pre_tokenizer.split(
          std::string_view(stretch.text).substr(first, last - first),
          first < stretch.lead ? Place::kTextBegin : Place::kLater,
          [&](std::string_view word) { parts_->encoder->encode(word, ids); });
    };
    take_out(parts_->added_normalized, stretch, encode_words, ids);
  };
  take_out(parts_->added, all, encode_stretch, ids);
  if (add_special == AddSpecial::kYes) {
    ids.insert(ids.end(), parts_->after.begin(), parts_->after.end());
  }
  return ids;
}

Result<std::string> Tokenizer::piece(TokenId id, ControlTokens control) const {
  const std::vector<std::string>& pieces = parts_->pieces;
  if (id < 0 || static_cast<std::size_t>(id) >= pieces.size()) {
    return input_error("token id {} is out of range, expected 0 to {}", id, pieces.size() - 1);
  }
  if (control == ControlTokens::kSkip && is_hidden(id)) return std::string();
  return pieces[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_hidden(TokenId id) const {
  const auto index = static_cast<std::size_t>(id);
  return is_control(parts_->types[index]) || parts_->ends[index];
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, ControlTokens control) const {
  std::string text;
  for (const TokenId id : ids) {
    ESPALIER_TRY(const std::string bytes, piece(id, control));
    text += bytes;
  }
  return text;
}

Result<std::string> Tokenizer::detokenize(std::span<const TokenId> ids,
                                          ControlTokens control) const {
  std::string text;
  std::string character;  // bytes of tokens that stand for one each
  bool first = parts_->drops_first_spaces;
  for (const TokenId id : ids) {
    ESPALIER_TRY(std::string bytes, piece(id, control));
    if (control == ControlTokens::kSkip && is_hidden(id)) continue;
    if (!parts_->byte_tokens.empty() && parts_->byte_tokens[static_cast<std::size_t>(id)]) {
      character += bytes;
    } else {
      text += all_or_replaced(character);
      character.clear();
      if (first) std::erase(bytes, ' ');
      text += bytes;
    }
    first = false;
  }
  text += all_or_replaced(character);
  if (parts_->replaces_broken) text = utf8_repaired(text);
  for (const Trim& trim : parts_->trims) apply(trim, text);
  return text;
}

std::size_t Tokenizer::vocab_size() const { return parts_->pieces.size(); }

bool Tokenizer::ends_generation(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < parts_->ends.size() &&
         parts_->ends[static_cast<std::size_t>(id)];
}

std::optional<TokenId> Tokenizer::begin_of_sequence() const { return parts_->bos; }
std::optional<TokenId> Tokenizer::end_of_sequence() const { return parts_->eos; }

}  // namespace espalier::text
