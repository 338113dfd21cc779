// The grammar of Jinja 3, with the extensions that Transformers turns on: break, continue,
// generation.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/jinja/syntax.h"

namespace espalier::text::jinja {

// How deep statements and expressions may nest.
inline constexpr int kMaxSyntaxDepth = 200;

// Errors begin with "line N: ".
[[nodiscard]] Result<Statements> parse(std::string_view source);

}  // namespace espalier::text::jinja
