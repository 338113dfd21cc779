// Base64, in which test data hold bytes.
#pragma once

#include <string>
#include <string_view>

namespace espalier::test {

// The bytes of padded standard base64 (RFC 4648, section 4). Anything else throws.
std::string base64_decode(std::string_view text);

}  // namespace espalier::test
