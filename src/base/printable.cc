#include "base/printable.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

namespace espalier {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t length = 0;  // in bytes; 0 where the bytes are not UTF-8
};

// The character at the front of `text`, which is not empty. Unicode 15, table 3-7: overlong forms,
// surrogates and codes above U+10FFFF are not UTF-8.
Character decode_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return {};
  std::uint32_t code = byte(0) & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (overlong || surrogate || code > 0x10ffff) return {};
  return {code, length};
}

// Whether a terminal would act on the character, or break the line there, instead of showing it.
bool acts_on_terminal(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) ||  // C0, DEL and C1 controls
         code == 0x2028 || code == 0x2029 ||              // line and paragraph separator
         code == 0x061c || code == 0x200e || code == 0x200f ||
         (code >= 0x202a && code <= 0x202e) ||  // bidirectional marks, embeddings, overrides
         (code >= 0x2066 && code <= 0x2069);    // and isolates
}

std::string escape(std::uint32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  if (code == '\\') return "\\\\";
  return code < 0x80 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{{{:x}}}", code);
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const Character character = decode_utf8(text.substr(i));
    const std::size_t length = character.length == 0 ? 1 : character.length;
    if (i + length > max_bytes) {
      out += "…";
      break;
    }
    if (character.length == 0) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(text[i]));
    } else if (character.code == '\\' || acts_on_terminal(character.code)) {
      out += escape(character.code);
    } else {
      out += text.substr(i, length);
    }
    i += length;
  }
  return out;
}

}  // namespace espalier
