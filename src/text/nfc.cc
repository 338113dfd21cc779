#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "text/utf8.h"

namespace espalier::text {
namespace {

int combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

void append_decomposed(std::string_view text, std::vector<utf8proc_int32_t>& codes) {
  std::array<utf8proc_int32_t, 8> parts;  // no canonical decomposition is longer than 4
  while (!text.empty()) {
    const std::size_t length = utf8_character(text);
    const auto code = static_cast<utf8proc_int32_t>(utf8_code_point(text, length));
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        code, parts.data(), parts.size(),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE), nullptr);
    if (count > 0 && count <= static_cast<utf8proc_ssize_t>(parts.size())) {
      codes.insert(codes.end(), parts.begin(), parts.begin() + count);
    } else {
      codes.push_back(code);
    }
    text.remove_prefix(length);
  }
}

// The library orders marks by exchanging neighbours, which takes quadratic time on long runs.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto is_starter = [](utf8proc_int32_t code) { return combining_class(code) == 0; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    begin = std::find_if_not(begin, codes.end(), is_starter);
    const auto end = std::find_if(begin, codes.end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = end;
  }
}

void append_composed(std::string_view text, std::string& composed) {
  // Characters below U+0300 are composed already and combine with nothing before them.
  const bool simple = std::all_of(
      text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0xcc; });
  if (simple) {
    composed += text;
    return;
  }
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  append_decomposed(text, codes);
  order_marks(codes);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    std::array<utf8proc_uint8_t, 4> bytes;
    const utf8proc_ssize_t length =
        utf8proc_encode_char(codes[static_cast<std::size_t>(i)], bytes.data());
    composed.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(length));
  }
}

}  // namespace

std::string nfc(std::string_view text) {
  std::string composed;
  composed.reserve(text.size());
  while (!text.empty()) {
    std::size_t valid = 0;
    while (const std::size_t length = utf8_character(text.substr(valid))) valid += length;
    append_composed(text.substr(0, valid), composed);
    text.remove_prefix(valid);
    while (!text.empty() && utf8_character(text) == 0) {
      composed += text[0];
      text.remove_prefix(1);
    }
  }
  return composed;
}

}  // namespace espalier::text
