// Which of many keys a text begins with, in one walk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::text {

class Trie {
 public:
  struct Entry {
    std::string_view key;
    std::int32_t value;
  };

  Trie() = default;

  // Empty keys are left out; of equal keys the first counts. Time and memory are those of all bytes
  // of the keys.
  explicit Trie(std::vector<Entry> entries) {
    std::erase_if(entries, [](const Entry& entry) { return entry.key.empty(); });
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.key < b.key; });
    // Breadth first, so that the children of a node lie together, in order of their bytes. Each
    // node has the entries that begin with its path.
    struct Span {
      std::size_t first, last, depth;
    };
    std::vector<Span> spans = {{0, entries.size(), 0}};
    nodes_.emplace_back();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Span span = spans[i];
      for (bool first = true; span.first < span.last; ++span.first, first = false) {
        if (entries[span.first].key.size() > span.depth) break;
        if (first) nodes_[i].value = entries[span.first].value;
      }
      nodes_[i].children = static_cast<std::uint32_t>(nodes_.size());
      while (span.first < span.last) {
        const char byte = entries[span.first].key[span.depth];
        std::size_t last = span.first;
        while (last < span.last && entries[last].key[span.depth] == byte) ++last;
        nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
        spans.push_back({span.first, last, span.depth + 1});
        ++nodes_[i].child_count;
        span.first = last;
      }
    }
  }

  // Calls visit(length, value) for every key that `text` begins with, the shortest first.
  template <typename Visit>
  void for_each_prefix(std::string_view text, const Visit& visit) const {
    if (nodes_.empty()) return;
    const Node* node = nodes_.data();
    for (std::size_t length = 0; length < text.size();) {
      const auto byte = static_cast<unsigned char>(text[length]);
      const Node* begin = nodes_.data() + node->children;
      const Node* end = begin + node->child_count;
      node = std::partition_point(begin, end, [&](const Node& child) { return child.byte < byte; });
      if (node == end || node->byte != byte) return;
      ++length;
      if (node->value >= 0) visit(length, node->value);
    }
  }

 private:
  struct Node {
    std::int32_t value = -1;
    std::uint32_t children = 0;  // index of the first
    std::uint16_t child_count = 0;
    unsigned char byte = 0;  // the last one of the path to here
  };

  std::vector<Node> nodes_;
};

}  // namespace espalier::text
