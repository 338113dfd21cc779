// What happens to a text before it is cut into words: steps that each write a new version of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/regex.h"
#include "text/rewriter.h"
#include "text/unicode.h"

namespace espalier::text {

// Writes a changed version of the text to the Rewriter. Bytes that are not UTF-8 stay as they are.
using NormalizerStep = std::function<void(const std::string&, Rewriter&)>;

// The steps in their order.
using Normalizer = std::vector<NormalizerStep>;

// What is looked for: a string or a pattern.
using Pattern = std::variant<std::string, std::shared_ptr<const Regex>>;

// Calls visit(begin, length, is_match) for the matches of `pattern`, which may be empty, and for
// what lies between them, from left to right. Patterns see valid UTF-8 only.
void for_each_match(const Pattern& pattern, std::string_view text,
                    const std::function<void(std::size_t, std::size_t, bool)>& visit);

[[nodiscard]] NormalizerStep normal_form(NormalForm form);
[[nodiscard]] NormalizerStep lowercase();

// `prefix` before a text that is not empty.
[[nodiscard]] NormalizerStep prepend(std::string prefix);

// `replacement` for every match of the pattern.
[[nodiscard]] NormalizerStep replace(Pattern pattern, std::string replacement);

// Without marks.
[[nodiscard]] NormalizerStep strip_accents();

enum class Side { kLeft, kRight };

// Without white space at one side.
[[nodiscard]] NormalizerStep strip(Side side);

// SentencePiece's compiled map of characters: a double-array trie (its size in bytes, then units of
// 32 bits, all little-endian) whose values are offsets into the zero-terminated texts that follow
// it. As in Hugging Face's tokenizers, a grapheme cluster of less than 6 bytes is replaced whole if
// any beginning of it is in the map; other characters one by one. Texts of more than
// kMaxMappedBytes are left out. Errors: a size that lies.
inline constexpr std::size_t kMaxMappedBytes = 64;
[[nodiscard]] Result<NormalizerStep> character_map(std::string blob);

[[nodiscard]] MarkedText normalize(const Normalizer& normalizer, MarkedText text);

}  // namespace espalier::text
