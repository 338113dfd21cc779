#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

bool is_word(std::string_view text, std::size_t begin, std::size_t length) {
  return length > 0 && is_word_character(utf8_code_point(text.substr(begin), length));
}

// True if no part of a longer word: neither side of text[begin, end) is a word's character.
bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  const std::size_t before = utf8_last_character(text.substr(0, begin));
  return !is_word(text, begin - before, before) &&
         !is_word(text, end, utf8_character(text.substr(end)));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::vector<Trie::Entry> entries;
  entries.reserve(tokens_.size());
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    entries.push_back({tokens_[i].text, static_cast<std::int32_t>(i)});
  }
  trie_ = Trie(std::move(entries));
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, std::size_t from,
                                                    const Allowed& allowed) const {
  for (std::size_t begin = from; begin < text.size();) {
    const AddedToken* longest = nullptr;
    trie_.for_each_prefix(text.substr(begin), [&](std::size_t length, std::int32_t index) {
      const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
      if (allowed(token, begin, length)) longest = &token;
    });
    if (longest == nullptr) {
      ++begin;
      continue;
    }
    const std::size_t end = begin + longest->text.size();
    if (longest->single_word && !stands_alone(text, begin, end)) {
      begin = end;
      continue;
    }
    Match match{begin, end, longest->id};
    if (longest->strips_left) match.begin -= trailing_space(text.substr(from, begin - from));
    if (longest->strips_right) match.end += leading_space(text.substr(end));
    return match;
  }
  return std::nullopt;
}

}  // namespace espalier::text
