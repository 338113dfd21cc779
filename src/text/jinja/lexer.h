// Cuts the source of a template into tokens, with the white space control of Jinja 3 as
// Transformers sets it: trim_blocks and lstrip_blocks are on, and one newline at the end of the
// source is dropped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja/value.h"

namespace espalier::text::jinja {

enum class TokenKind : std::uint8_t {
  kText,           // between the tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,
  kInteger,
  kReal,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // of a string, what it stands for
  Value number = {};
};

// The error of a template, with the line it was found in.
template <typename... Args>
[[nodiscard]] Error error_at(int line, fmt::format_string<Args...> format, Args&&... args) {
  return input_error("line {}: {}", line, fmt::format(format, std::forward<Args>(args)...));
}

// The tokens, kEnd last. Errors: a tag, comment or string without end; a character that is no
// token.
[[nodiscard]] Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace espalier::text::jinja
