// JSON into values and back, the latter as Python's json.dumps writes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/jinja/value.h"

namespace espalier::text::jinja {

// The value of a JSON text; members of objects keep their order, and strings get `origin`. `name`
// stands for the text in messages. Errors: not JSON, not UTF-8, nested deeper than kMaxValueDepth.
[[nodiscard]] Result<Value> parse_json(std::string_view json, Origin origin,
                                       const std::string& name);

// The arguments of json.dumps, with the defaults that Transformers gives its filter.
struct JsonStyle {
  std::optional<std::string> indent;  // of one level
  std::optional<std::string> item_separator, key_separator;
  enum class Characters { kAsTheyAre, kAscii } characters = Characters::kAsTheyAre;
  enum class Keys { kInOrder, kSorted } keys = Keys::kInOrder;
};

// `value` as JSON. Errors: something in it that JSON has no form for; more than `most` bytes.
[[nodiscard]] Result<MarkedText> to_json(const Value& value, const JsonStyle& style,
                                         std::size_t most);

}  // namespace espalier::text::jinja
