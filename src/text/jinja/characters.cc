#include "text/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace espalier::text::jinja {
namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

std::string in_utf8(utf8proc_int32_t code) {
  std::string bytes;
  append_utf8(bytes, static_cast<char32_t>(code));
  return bytes;
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

constexpr char32_t kSharpS = 0xdf;  // the one common letter whose upper case is two

}  // namespace

Character character_at(std::string_view bytes, std::size_t i) {
  const std::string_view rest = bytes.substr(i);
  const std::size_t length = utf8_character(rest);
  if (length == 0) return {0xfffd, 1};
  return {utf8_code_point(rest, length), length};
}

std::size_t count_characters(std::string_view bytes) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < bytes.size(); i += character_at(bytes, i).length) ++count;
  return count;
}

std::size_t byte_of_character(std::string_view bytes, std::size_t index) {
  std::size_t i = 0;
  for (; index > 0 && i < bytes.size(); --index) i += character_at(bytes, i).length;
  return i;
}

void append_utf8(std::string& out, char32_t code) {
  if ((code >= 0xd800 && code < 0xe000) || code > 0x10ffff) code = 0xfffd;
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

bool is_space(char32_t code) {
  if (code < 0x80)
    return code == ' ' || (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x1f);
  return code == 0x85 || category(code) == UTF8PROC_CATEGORY_ZS ||
         category(code) == UTF8PROC_CATEGORY_ZL || category(code) == UTF8PROC_CATEGORY_ZP;
}

bool is_alpha(char32_t code) {
  const auto kind = category(code);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }
bool is_upper(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LL; }

bool is_printable(char32_t code) {
  if (code < 0x80) return code >= 0x20 && code != 0x7f;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string upper(char32_t code) {
  if (code == kSharpS) return "SS";
  return in_utf8(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}

std::string lower(char32_t code) {
  return in_utf8(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

std::string title(char32_t code) {
  if (code == kSharpS) return "Ss";
  return in_utf8(utf8proc_totitle(static_cast<utf8proc_int32_t>(code)));
}

std::size_t leading_space(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const Character c = character_at(text, i);
    if (!is_space(c.code)) break;
    i += c.length;
  }
  return i;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && is_continuation(text[begin])) --begin;
    const Character c = character_at(text, begin);
    if (begin + c.length != end || !is_space(c.code)) break;
    end = begin;
  }
  return text.size() - end;
}

std::size_t line_break(std::string_view text, std::size_t i) {
  if (text.substr(i).starts_with("\r\n")) return 2;
  const Character c = character_at(text, i);
  const bool breaks = (c.code >= 0x0a && c.code <= 0x0d) || (c.code >= 0x1c && c.code <= 0x1e) ||
                      c.code == 0x85 || c.code == 0x2028 || c.code == 0x2029;
  return breaks ? c.length : 0;
}

}  // namespace espalier::text::jinja
