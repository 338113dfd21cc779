// Base64, in which JSON holds bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace espalier {

// The bytes of padded standard base64 (RFC 4648, section 4), or nothing if `text` is something
// else.
[[nodiscard]] std::optional<std::string> base64_decode(std::string_view text);

}  // namespace espalier
