// Text out of untrusted files, made fit for a terminal or a one-line message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace espalier {

// Enough for any name in a message.
inline constexpr std::size_t kPrintableBytes = 160;

// `text` on one line: control characters, line and paragraph separators, characters that reorder
// text, backslashes and bytes that are not UTF-8 become escapes (\n, \\, \x1b, \u{202e}, \xff).
// Of a text longer than `max_bytes`, only that much is shown and "…" added.
[[nodiscard]] std::string printable(std::string_view text, std::size_t max_bytes = kPrintableBytes);

}  // namespace espalier
