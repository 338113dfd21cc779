// Characters as Python's str sees them: code points and their properties.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace espalier::text::jinja {

struct Character {
  char32_t code = 0;
  std::size_t length = 1;  // in bytes
};

// The character that begins at byte `i` < bytes.size(). A byte that is not UTF-8 counts as a
// character of its own, U+FFFD.
[[nodiscard]] Character character_at(std::string_view bytes, std::size_t i);

// How many characters there are.
[[nodiscard]] std::size_t count_characters(std::string_view bytes);

// The byte at which character `index` begins; bytes.size() if there are not that many.
[[nodiscard]] std::size_t byte_of_character(std::string_view bytes, std::size_t index);

void append_utf8(std::string& out, char32_t code);

[[nodiscard]] bool is_space(char32_t code);  // str.isspace
[[nodiscard]] bool is_alpha(char32_t code);
[[nodiscard]] bool is_digit(char32_t code);
[[nodiscard]] bool is_upper(char32_t code);
[[nodiscard]] bool is_lower(char32_t code);
[[nodiscard]] bool is_printable(char32_t code);

// The upper-, lower- and title-case forms of a character, in UTF-8.
[[nodiscard]] std::string upper(char32_t code);
[[nodiscard]] std::string lower(char32_t code);
[[nodiscard]] std::string title(char32_t code);

// How many bytes of white space `text` begins and ends with.
[[nodiscard]] std::size_t leading_space(std::string_view text);
[[nodiscard]] std::size_t trailing_space(std::string_view text);

// Where lines end: the length of the line break at byte `i`, as str.splitlines sees it, or 0.
[[nodiscard]] std::size_t line_break(std::string_view text, std::size_t i);

}  // namespace espalier::text::jinja
