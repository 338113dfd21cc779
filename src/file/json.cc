#include "file/json.h"

#include <algorithm>
#include <limits>

#include "base/mapped_file.h"
#include "base/printable.h"

namespace espalier::file {
namespace {

// How deep arrays and objects nest. Exact for JSON; for anything else the parser has the say.
int nesting_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<Json> parse_json(Bytes bytes, const std::string& name) {
  if (bytes.size() > kMaxJsonBytes) {
    return input_error("{}: {} bytes of JSON, at most {} are read", name, bytes.size(),
                       kMaxJsonBytes);
  }
  const std::string_view text = as_text(bytes);
  if (const int depth = nesting_depth(text); depth > kMaxJsonDepth) {
    return input_error("{}: nested {} deep, at most {} are read", name, depth, kMaxJsonDepth);
  }
  try {
    Json document = Json::parse(text);
    if (!document.is_object()) {
      return input_error("{}: the document is {}, expected an object", name, json_kind(document));
    }
    return document;
  } catch (const nlohmann::json::parse_error& error) {
    const bool encoding =
        std::string_view(error.what()).find("ill-formed UTF-8") != std::string_view::npos;
    return input_error("{}: not {} at byte {}", name, encoding ? "UTF-8" : "JSON", error.byte);
  } catch (const nlohmann::json::exception&) {  // a number beyond the range of a double
    return input_error("{}: holds a number that is out of range", name);
  }
}

Result<Json> read_json(const std::filesystem::path& path) {
  ESPALIER_TRY(const MappedFile mapped, MappedFile::open(path));
  return parse_json(mapped.bytes(), path.string());
}

std::string_view json_kind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
      return "a negative integer";
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a fraction";
    default:
      return "something else";
  }
}

const Json* JsonObject::find(std::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

Error JsonObject::wrong_type(std::string_view key, std::string_view expected) const {
  return input_error("{}: key '{}' is {}, expected {}", where_, printable(key),
                     json_kind(*find(key)), expected);
}

Result<std::optional<std::int64_t>> JsonObject::integer(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<std::int64_t>();
  if (!value->is_number_integer()) return wrong_type(key, "an integer");
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value->is_number_unsigned() && value->get<std::uint64_t>() > kLargest) {
    return input_error("{}: key '{}' is {}, expected at most {}", where_, printable(key),
                       value->get<std::uint64_t>(), kLargest);
  }
  return std::optional(value->get<std::int64_t>());
}

Result<std::optional<std::uint64_t>> JsonObject::unsigned_integer(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<std::uint64_t>();
  if (!value->is_number_unsigned()) return wrong_type(key, "an integer from 0 up");
  return std::optional(value->get<std::uint64_t>());
}

Result<std::optional<double>> JsonObject::number(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number()) return wrong_type(key, "a number");
  return std::optional(value->get<double>());
}

Result<std::optional<bool>> JsonObject::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return wrong_type(key, "a boolean");
  return std::optional(value->get<bool>());
}

Result<std::optional<std::string>> JsonObject::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return wrong_type(key, "a string");
  return std::optional(value->get<std::string>());
}

Result<std::optional<JsonObject>> JsonObject::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<JsonObject>();
  if (!value->is_object()) return wrong_type(key, "an object");
  return std::optional(JsonObject(*value, fmt::format("{}: {}", where_, printable(key))));
}

}  // namespace espalier::file
