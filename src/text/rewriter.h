// Texts that are changed on their way to a tokenizer's model, with a record of which of their bytes
// come from parts where control tokens are looked for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::text {

// Stretches of a text, added from left to right; those that touch are one.
class Ranges {
 public:
  void add(std::size_t begin, std::size_t length) {
    if (length == 0) return;
    if (!ranges_.empty() && ranges_.back().second == begin) {
      ranges_.back().second += length;
    } else {
      ranges_.emplace_back(begin, begin + length);
    }
  }

  // True if one of them holds all of [begin, begin + length).
  [[nodiscard]] bool contain(std::size_t begin, std::size_t length) const {
    const auto after = first_beyond(begin);
    return after != ranges_.begin() && begin + length <= std::prev(after)->second;
  }

  // What lies in [begin, begin + length), counted from `begin`, goes to `to` at `offset`.
  void copy(std::size_t begin, std::size_t length, Ranges& to, std::size_t offset) const {
    auto range = first_beyond(begin);
    if (range != ranges_.begin()) --range;
    for (; range != ranges_.end() && range->first < begin + length; ++range) {
      const std::size_t first = std::max(range->first, begin);
      const std::size_t last = std::min(range->second, begin + length);
      if (first < last) to.add(offset + first - begin, last - first);
    }
  }

 private:
  using Range = std::pair<std::size_t, std::size_t>;  // begin, end

  [[nodiscard]] std::vector<Range>::const_iterator first_beyond(std::size_t begin) const {
    return std::partition_point(ranges_.begin(), ranges_.end(),
                                [&](const Range& range) { return range.first <= begin; });
  }

  std::vector<Range> ranges_;
};

// A text, and the stretches of it in which control tokens are looked for.
struct MarkedText {
  std::string text;
  Ranges parsed;
  // The bytes that it begins with which come from the first character of the text to be encoded.
  // None: that is in another stretch, or was taken away.
  std::size_t lead = 0;
};

// Writes a changed version of a text from left to right. What replaces bytes is marked if all of
// them were.
class Rewriter {
 public:
  explicit Rewriter(const MarkedText& from) : from_(from) { to_.text.reserve(from.text.size()); }

  // The bytes [begin, begin + length) as they are.
  void keep(std::size_t begin, std::size_t length) {
    from_.parsed.copy(begin, length, to_.parsed, to_.text.size());
    if (continues_lead(begin)) to_.lead += std::min(length, from_.lead - begin);
    to_.text.append(from_.text, begin, length);
  }

  // `text` for the bytes [begin, begin + length).
  void replace(std::size_t begin, std::size_t length, std::string_view text) {
    if (from_.parsed.contain(begin, length)) to_.parsed.add(to_.text.size(), text.size());
    if (continues_lead(begin)) to_.lead += text.size();
    to_.text += text;
  }

  [[nodiscard]] MarkedText take() { return std::move(to_); }

 private:
  [[nodiscard]] bool continues_lead(std::size_t begin) const {
    return begin < from_.lead && to_.lead == to_.text.size();
  }

  const MarkedText& from_;
  MarkedText to_;
};

}  // namespace espalier::text
