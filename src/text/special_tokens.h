// Finds the spellings of special tokens in a text.
#pragma once

#include <bitset>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace espalier::text {

class SpecialTokens {
 public:
  struct Entry {
    std::string_view text;  // must outlive this object
    TokenId id;
  };
  struct Match {
    std::size_t begin, length;
    TokenId id;
  };

  SpecialTokens() = default;

  // Empty texts are left out; of equal texts the first counts.
  explicit SpecialTokens(std::vector<Entry> entries);

  // The first match at or after `from` that `allowed` takes; of those that begin there, the
  // longest.
  [[nodiscard]] std::optional<Match> find(
      std::string_view text, std::size_t from,
      const std::function<bool(const Match&)>& allowed = [](const Match&) { return true; }) const;

 private:
  std::vector<Entry> entries_;  // sorted by text
  std::bitset<256> first_bytes_;
};

}  // namespace espalier::text
