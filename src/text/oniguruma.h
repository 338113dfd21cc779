// Oniguruma's regular expressions in PCRE2's syntax.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace espalier::text {

// The pattern that matches, in PCRE2's UTF, UCP and multi-line mode, what `pattern` does in
// Oniguruma's own syntax with its default options (https://github.com/kkos/oniguruma, doc/RE).
// What differs: sets within sets and their intersection (&&), \s \w \d \h \b \v \O \u, scripts such
// as \p{Han}, (?m) for "dot matches newline", {,n} and {n,m}+, which repeats and is not possessive.
// Errors: brackets that are not closed or nest too deeply. Anything else that is wrong is left for
// the compiler to find.
[[nodiscard]] Result<std::string> pcre2_from_oniguruma(std::string_view pattern);

}  // namespace espalier::text
