// Cuts text into the words that byte pair encoding stays within. Which patterns do that is part of
// a published model; files name them in tokenizer.ggml.pre.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/vocabulary.h"

namespace espalier::text {

// One pattern, applied to each fragment that the patterns before it left. Every match becomes a
// fragment, and so does everything between two matches.
struct SplitStep {
  enum class Cut {
    kMatches,
    kThreesFromRight,  // and each match is cut in three characters at a time, from its end
  };
  std::string_view pattern;  // Perl syntax; \s is Unicode's White_Space
  Cut cut = Cut::kMatches;
};

struct PreTokenizerSpec {
  std::vector<std::string_view> names;  // values of tokenizer.ggml.pre
  std::vector<SplitStep> steps;
  bool ignore_merges = false;   // a word that is a token becomes that token without merging
  bool add_bos = false;         // unless the file says otherwise
  bool nfc = false;             // text is brought to normalization form C first
  bool newline_tokens = false;  // as ignore_merges, for words of newlines only
  Spelling spelling = Spelling::kByteLevel;
};

// All that there are, the one named "default" first.
[[nodiscard]] std::span<const PreTokenizerSpec> pre_tokenizers();

// The one of that name, or null.
[[nodiscard]] const PreTokenizerSpec* find_pre_tokenizer(std::string_view name);

// The compiled steps. Splitting takes time linear in the text for every entry of the table.
class PreTokenizer {
 public:
  [[nodiscard]] static Result<PreTokenizer> compile(std::span<const SplitStep> steps);

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Calls `visit` with every word, in order; together they are `text`. Patterns see valid UTF-8
  // only: a run of bytes that are not is a word, and ends the words beside it.
  void split(std::string_view text, const std::function<void(std::string_view)>& visit) const;

 private:
  struct Step;
  explicit PreTokenizer(std::vector<Step> steps);

  std::vector<Step> steps_;
};

}  // namespace espalier::text
