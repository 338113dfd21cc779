// Unicode normalization form C, which some vocabularies were made for.
#pragma once

#include <string>
#include <string_view>

namespace espalier::text {

// `text` with its characters composed where Unicode has a composed one, and combining marks in
// canonical order (Unicode Standard Annex #15). Bytes that are not UTF-8 stay as they are. The time
// is that of sorting the marks of each character: O(n log n).
[[nodiscard]] std::string nfc(std::string_view text);

}  // namespace espalier::text
