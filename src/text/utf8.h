// The little of UTF-8 that tokenizers and streaming need.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace espalier::text {

// Length of the UTF-8 character that `bytes` begin with, or 0 where they do not begin with one:
// strict, without overlong forms, surrogates and anything above U+10FFFF (RFC 3629, section 4).
[[nodiscard]] inline std::size_t utf8_character(std::string_view bytes) {
  if (bytes.empty()) return 0;
  const auto byte = [&](std::size_t i) {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned lead = byte(0), second = byte(1);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4 || !continues(1)) return 0;
  if (lead < 0xe0) return 2;
  if (!continues(2)) return 0;
  if (lead < 0xf0) {
    return (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ? 0 : 3;
  }
  if (!continues(3)) return 0;
  return (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f) ? 0 : 4;
}

// The code point of the first character, `length` bytes long.
[[nodiscard]] inline char32_t utf8_code_point(std::string_view bytes, std::size_t length) {
  if (length == 1) return static_cast<unsigned char>(bytes[0]);
  char32_t code = static_cast<unsigned char>(bytes[0]) & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    code = code << 6 | (static_cast<unsigned char>(bytes[i]) & 0x3fu);
  }
  return code;
}

// Length of the UTF-8 character that `bytes` end with, or 0 where they do not end with one.
[[nodiscard]] inline std::size_t utf8_last_character(std::string_view bytes) {
  for (std::size_t length = 1; length <= 4 && length <= bytes.size(); ++length) {
    if (utf8_character(bytes.substr(bytes.size() - length)) == length) return length;
  }
  return 0;
}

// Length of the stretch that `bytes` begin with which is UTF-8, or, if that is nothing, which is
// not.
[[nodiscard]] inline std::size_t utf8_run(std::string_view bytes) {
  std::size_t valid = 0;
  while (const std::size_t length = utf8_character(bytes.substr(valid))) valid += length;
  if (valid > 0) return valid;
  std::size_t broken = 0;
  while (broken < bytes.size() && utf8_character(bytes.substr(broken)) == 0) ++broken;
  return broken;
}

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// `bytes` with U+FFFD for what is not UTF-8: one for the longest beginning of a character, one for
// every other byte (The Unicode Standard, section 3.9: substitution of maximal subparts).
[[nodiscard]] inline std::string utf8_repaired(std::string_view bytes) {
  const auto begins_character = [](std::string_view part) {
    for (const char* rest : {"\x80\x80\x80", "\xbf\xbf\xbf"}) {
      if (utf8_character(std::string(part) + rest) > part.size()) return true;
    }
    return false;
  };
  std::string text;
  while (!bytes.empty()) {
    std::size_t length = utf8_character(bytes);
    if (length > 0) {
      text += bytes.substr(0, length);
    } else {
      length = std::min<std::size_t>(3, bytes.size());
      while (length > 1 && !begins_character(bytes.substr(0, length))) --length;
      text += kReplacementCharacter;
    }
    bytes.remove_prefix(length);
  }
  return text;
}

// Length of the longest prefix of `bytes` that does not end inside a UTF-8 character. Bytes that
// are not UTF-8 at all count as characters of their own, so only the last three can be held back.
[[nodiscard]] inline std::size_t complete_utf8_prefix(std::string_view bytes) {
  for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const auto byte = static_cast<unsigned char>(bytes[bytes.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;  // a continuation: its lead byte is further left
    const std::size_t length = byte >= 0xf0 && byte <= 0xf4   ? 4
                               : byte >= 0xe0 && byte <= 0xef ? 3
                               : byte >= 0xc2 && byte <= 0xdf ? 2
                                                              : 1;
    return length > back ? bytes.size() - back : bytes.size();
  }
  return bytes.size();
}

// Text that comes in pieces, given out in whole characters.
class WholeCharacters {
 public:
  // What can be given out once `bytes` are there too.
  [[nodiscard]] std::string add(std::string_view bytes) {
    held_ += bytes;
    const std::size_t count = complete_utf8_prefix(held_);
    std::string whole = held_.substr(0, count);
    held_.erase(0, count);
    return whole;
  }
  // At the end of the text: U+FFFD if it ends inside a character, otherwise nothing.
  [[nodiscard]] std::string finish() {
    const bool cut_off = !held_.empty();
    held_.clear();
    return cut_off ? std::string(kReplacementCharacter) : "";
  }

 private:
  std::string held_;
};

}  // namespace espalier::text
