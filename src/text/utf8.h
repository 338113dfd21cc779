// The little of UTF-8 that streaming needs.
#pragma once

#include <cstddef>
#include <string_view>

namespace espalier::text {

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

}  // namespace espalier::text
