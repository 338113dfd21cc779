// How the models that are published as GGUF cut text into words: files only name the patterns, in
// tokenizer.ggml.pre.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/pre_tokenizer.h"
#include "text/vocabulary.h"

namespace espalier::text {

// One pattern, applied to each fragment that the patterns before it left. Every match becomes a
// fragment, and so does everything between two matches.
struct SplitStep {
  enum class Cut {
    kMatches,
    kThreesFromRight,  // and each match is cut in three characters at a time, from its end
  };
  std::string_view pattern;
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

// Its steps, ready to be used. Splitting takes time linear in the text for every entry.
[[nodiscard]] Result<PreTokenizer> compile(const PreTokenizerSpec& spec);

}  // namespace espalier::text
