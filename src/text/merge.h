// The merging that both kinds of vocabulary are made of: of all neighbouring symbols that may
// become one, the best pair does, until none may. Time O(n log n), whatever the length of a word.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "text/text_tokens.h"

namespace espalier::text {

// A piece of the text; merging makes it longer. One of length 0 was merged into another.
struct Symbol {
  TokenId id = kNoToken;
  std::size_t begin = 0, length = 0;
  std::size_t previous = 0, next = 0;  // indices, or Merger::kNone
};

// What two symbols become, and how early: lower ranks first, of equals the leftmost.
struct Merge {
  std::uint32_t rank = 0;
  TokenId id = kNoToken;
};

class Merger {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  void clear() { symbols_.clear(); }

  // Appends a symbol that follows the last one.
  void add(TokenId id, std::size_t begin, std::size_t length) {
    const std::size_t index = symbols_.size();
    if (index > 0) symbols_.back().next = index;
    symbols_.push_back({id, begin, length, index == 0 ? kNone : index - 1, kNone});
  }

  // `find(left, right)` gives the merge of two symbols, as std::optional<Merge>.
  template <typename Find>
  void merge(const Find& find) {
    candidates_.clear();
    const auto consider = [&](std::size_t left) {
      if (left == kNone || symbols_[left].next == kNone) return false;
      const Symbol& a = symbols_[left];
      const Symbol& b = symbols_[a.next];
      const std::optional<Merge> found = find(a, b);
      if (found) candidates_.push_back({found->rank, found->id, left, a.length + b.length});
      return found.has_value();
    };
    for (std::size_t i = 0; i < symbols_.size(); ++i) consider(i);
    std::make_heap(candidates_.begin(), candidates_.end(), later);
    while (!candidates_.empty()) {
      std::pop_heap(candidates_.begin(), candidates_.end(), later);
      const Candidate best = candidates_.back();
      candidates_.pop_back();
      Symbol& left = symbols_[best.left];
      if (left.length == 0 || left.next == kNone) continue;
      Symbol& right = symbols_[left.next];
      // One of the two has grown since, and the pair it is in now has a candidate of its own.
      if (left.length + right.length != best.length) continue;
      left.id = best.id;
      left.length = best.length;
      left.next = right.next;
      right.length = 0;
      if (left.next != kNone) symbols_[left.next].previous = best.left;
      for (const std::size_t changed : {left.previous, best.left}) {
        if (consider(changed)) std::push_heap(candidates_.begin(), candidates_.end(), later);
      }
    }
  }

  // Calls `visit` with every symbol that is left, in order.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t i = symbols_.empty() ? kNone : 0; i != kNone; i = symbols_[i].next) {
      visit(symbols_[i]);
    }
  }

 private:
  struct Candidate {
    std::uint32_t rank;
    TokenId id;
    std::size_t left;    // index of the left symbol
    std::size_t length;  // of both together
  };
  static bool later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }

  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;
};

}  // namespace espalier::text
