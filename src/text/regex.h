// Regular expressions of tokenizers, which are written for Oniguruma and run here by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace espalier::text {

inline constexpr std::size_t kMaxPatternBytes = 1 << 16;

class Regex {
 public:
  // Where a pattern matches in a text.
  struct Match {
    std::size_t begin, end;
  };

  // Errors: a pattern that is too long, or that cannot be translated or compiled. Nothing of a
  // pattern is trusted.
  [[nodiscard]] static Result<Regex> compile(std::string_view pattern);

  // A pattern that matches `text` alone.
  [[nodiscard]] static std::string quote(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  [[nodiscard]] const std::string& pattern() const { return pattern_; }

 private:
  friend class RegexSearch;
  struct Code;
  explicit Regex(std::string pattern, std::unique_ptr<Code> code);

  std::string pattern_;
  std::unique_ptr<Code> code_;
};

// The matches in one text of valid UTF-8, from left to right. Matches do not overlap; they may be
// empty, but not where the one before ended. However a pattern is made, all of them together take
// time linear in the text: what one cannot do within a fixed number of steps per byte is given up
// with a warning, and the rest of the text has no match.
class RegexSearch {
 public:
  RegexSearch(const Regex& regex, std::string_view text);
  RegexSearch(const RegexSearch&) = delete;
  RegexSearch& operator=(const RegexSearch&) = delete;
  ~RegexSearch();

  [[nodiscard]] std::optional<Regex::Match> next();

 private:
  struct State;

  std::optional<Regex::Match> find();
  std::optional<Regex::Match> match_at(std::size_t begin);
  void give_up();

  const Regex& regex_;
  std::string_view text_;
  std::unique_ptr<State> state_;
  std::size_t from_ = 0;
  std::optional<std::size_t> last_end_;
  std::size_t budget_ = 0;  // what attempts that take long may still cost
};

}  // namespace espalier::text
