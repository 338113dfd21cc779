#include "text/special_tokens.h"

#include <algorithm>

namespace espalier::text {

SpecialTokens::SpecialTokens(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::erase_if(entries_, [](const Entry& entry) { return entry.text.empty(); });
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const Entry& a, const Entry& b) { return a.text < b.text; });
  entries_.erase(std::unique(entries_.begin(), entries_.end(),
                             [](const Entry& a, const Entry& b) { return a.text == b.text; }),
                 entries_.end());
  for (const Entry& entry : entries_) {
    first_bytes_.set(static_cast<unsigned char>(entry.text[0]));
  }
}

std::optional<SpecialTokens::Match> SpecialTokens::find(
    std::string_view text, std::size_t from,
    const std::function<bool(const Match&)>& allowed) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!first_bytes_[static_cast<unsigned char>(text[begin])]) continue;
    // Narrow the sorted list to the entries that agree with the text, one byte after the other. The
    // first of them is the one that ends here, if there is one.
    std::optional<Match> longest;
    auto low = entries_.begin(), high = entries_.end();
    for (std::size_t length = 0; begin + length < text.size() && low != high; ++length) {
      const auto wanted = static_cast<unsigned char>(text[begin + length]);
      const auto byte = [&](const Entry& entry) {
        return length < entry.text.size() ? static_cast<unsigned char>(entry.text[length]) : -1;
      };
      low = std::partition_point(low, high, [&](const Entry& e) { return byte(e) < wanted; });
      high = std::partition_point(low, high, [&](const Entry& e) { return byte(e) == wanted; });
      if (low == high || low->text.size() != length + 1) continue;
      const Match match{begin, length + 1, low->id};
      if (allowed(match)) longest = match;
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace espalier::text
