// Text that remembers where each of its bytes came from: the template, or what a template was
// given. Everything done to text goes through append() and substr(), so no operation can lose the
// mark.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::text::jinja {

enum class Origin : std::uint8_t {
  kTemplate,  // written by whoever made the model
  kMessage,   // written by whoever talks to it
};

// A stretch of text with one origin.
struct MarkedPart {
  std::string_view text;
  Origin origin;
  bool operator==(const MarkedPart&) const = default;
};

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string_view bytes, Origin origin) { append(bytes, origin); }

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }

  // The origin of byte `i` < size().
  [[nodiscard]] Origin origin(std::size_t i) const;

  // kMessage if any byte is: the mark of something computed from the text as a whole.
  [[nodiscard]] Origin weakest_origin() const;

  // In order, none empty, neighbours of different origin. They look at this text.
  [[nodiscard]] std::vector<MarkedPart> parts() const;

  void append(std::string_view bytes, Origin origin);
  void append(const MarkedText& other) { append(other, 0, other.size()); }
  // `count` bytes of `other` from `begin` on, all of them inside of it.
  void append(const MarkedText& other, std::size_t begin, std::size_t count);
  [[nodiscard]] MarkedText substr(std::size_t begin, std::size_t count) const;

  // Whether the text is HTML: then what is added to it with + gets escaped (`|safe` and `|e` give
  // such texts). Kept by copies only.
  [[nodiscard]] bool is_html() const { return is_html_; }
  [[nodiscard]] MarkedText as_html() && {
    is_html_ = true;
    return std::move(*this);
  }

 private:
  struct Run {
    std::size_t end;  // where the next run begins
    Origin origin;
  };
  [[nodiscard]] std::size_t run_at(std::size_t i) const;

  std::string bytes_;
  std::vector<Run> runs_;
  bool is_html_ = false;
};

}  // namespace espalier::text::jinja
