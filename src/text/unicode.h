// Kinds of characters, and normalization, by the Unicode Character Database.
#pragma once

#include <string>
#include <string_view>

#include "text/rewriter.h"

namespace espalier::text {

// The property White_Space.
[[nodiscard]] bool is_white_space(char32_t code);

// What \w is in Unicode Technical Standard #18: letters, marks, decimal digits and connectors.
[[nodiscard]] bool is_word_character(char32_t code);

// The general category M: accents, vowel signs and other marks.
[[nodiscard]] bool is_mark(char32_t code);

// Length of the white space that `text` begins or ends with.
[[nodiscard]] std::size_t leading_space(std::string_view text);
[[nodiscard]] std::size_t trailing_space(std::string_view text);

// Length of the grapheme cluster that valid UTF-8 begins with (Unicode Standard Annex #29).
[[nodiscard]] std::size_t grapheme_cluster(std::string_view text);

// The lower case of one character, as UTF-8.
[[nodiscard]] std::string lower_case(char32_t code);

enum class NormalForm { kC, kD, kKC, kKD };

// `text` in a normalization form (Unicode Standard Annex #15), as of Unicode 11, by which Hugging
// Face's tokenizers and so the models' training data were normalized: characters that came later
// stay as they are. So do bytes that are not UTF-8. The time is that of sorting the marks of each
// character: O(n log n).
void normalize(NormalForm form, std::string_view text, Rewriter& out);
[[nodiscard]] std::string normalized(NormalForm form, std::string_view text);

}  // namespace espalier::text
