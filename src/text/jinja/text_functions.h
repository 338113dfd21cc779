// What methods and filters of strings share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/marked_text.h"

namespace espalier::text::jinja {

// Each character changed by `change`, which gets it and the one before it (0 at the start).
[[nodiscard]] Result<Value> map_characters(Interpreter& run, const MarkedText& text,
                                           std::string (*change)(char32_t code, char32_t before));

// str.capitalize.
[[nodiscard]] std::string capitalized(char32_t code, char32_t before);

enum class Sides { kLeft, kRight, kBoth };

// str.strip and its relatives: without the characters of `characters` at the ends, or without white
// space where that is null.
[[nodiscard]] MarkedText stripped(const MarkedText& text, Sides sides,
                                  const std::string* characters);

// str.splitlines. `keep`: with the line breaks.
enum class LineBreaks { kDrop, kKeep };
[[nodiscard]] std::vector<MarkedText> split_lines(const MarkedText& text, LineBreaks breaks);

// str.replace, at most `count` times from the left; below 0 means all.
[[nodiscard]] Result<Value> replaced(Interpreter& run, const MarkedText& text,
                                     const std::string& old, const MarkedText& by, Integer count);

// str(separator).join(str(item) for item in items).
[[nodiscard]] Result<Value> joined(Interpreter& run, const MarkedText& separator,
                                   const std::vector<Value>& items);

// The text with & < > ' " as HTML spells them; one that is HTML already, as it is.
[[nodiscard]] Result<MarkedText> html_escaped(Interpreter& run, const MarkedText& text);

// Appends `text` so many times, in large pieces.
void append_times(TextBuilder& builder, const MarkedText& text, std::size_t times);

// `text` with `fill` on both sides until it has `width` characters.
[[nodiscard]] Result<Value> padded(Interpreter& run, const MarkedText& text, Integer width,
                                   const MarkedText& fill, Sides pad);

// Whether `width` more characters can be made; an error where not.
[[nodiscard]] Result<std::size_t> checked_width(Interpreter& run, Integer width);

// The number that a text spells, as int(text, base) and float(text) read it.
[[nodiscard]] std::optional<Integer> parse_integer(std::string_view text, int base);
[[nodiscard]] std::optional<double> parse_real(std::string_view text);

}  // namespace espalier::text::jinja
