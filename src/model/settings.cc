#include "model/settings.h"

#include <cmath>

#include "base/printable.h"

namespace espalier::model {
namespace {

// What an element of an array is worth as a T; nothing for other types.
template <typename T>
std::optional<T> element(const file::Json& value) {
  if constexpr (std::is_same_v<T, double>) {
    if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
    if (value.is_number()) return value.get<double>();
  } else {
    if (value.is_string()) return value.get<std::string>();
  }
  return std::nullopt;
}

template <typename T>
std::optional<T> element(const file::GgufValue& value) {
  if constexpr (std::is_same_v<T, double>) {
    if (const auto* boolean = std::get_if<bool>(&value.value)) return *boolean ? 1 : 0;
    if (const auto* integer = std::get_if<std::uint64_t>(&value.value)) {
      return static_cast<double>(*integer);
    }
    if (const auto* integer = std::get_if<std::int64_t>(&value.value)) {
      return static_cast<double>(*integer);
    }
    if (const auto* number = std::get_if<double>(&value.value)) return *number;
  } else {
    if (const auto* text = std::get_if<std::string_view>(&value.value)) return std::string(*text);
  }
  return std::nullopt;
}

template <typename T>
constexpr std::string_view kElements = std::is_same_v<T, double> ? "numbers" : "strings";

template <typename T>
Result<std::optional<std::vector<T>>> read_array(const file::Gguf& gguf, const std::string& key) {
  const file::GgufValue* value = gguf.find(key);
  if (value == nullptr) return std::optional<std::vector<T>>();
  const auto wrong = [&] {
    return input_error("{}: metadata key '{}': found {}, expected an array of {}", gguf.name(), key,
                       describe(*value), kElements<T>);
  };
  const auto* array = std::get_if<file::GgufArray>(&value->value);
  if (array == nullptr) return wrong();
  std::vector<T> values;
  file::GgufElements elements(*array);
  while (const auto next = elements.next()) {
    std::optional<T> converted = element<T>(*next);
    if (!converted) return wrong();
    values.push_back(std::move(*converted));
  }
  return std::optional(std::move(values));
}

template <typename T>
Result<std::optional<std::vector<T>>> read_array(const file::JsonObject& object,
                                                 const std::string& key) {
  const file::Json* value = object.find(key);
  if (value == nullptr) return std::optional<std::vector<T>>();
  const auto wrong = [&](const file::Json& found) {
    return input_error("{}: key '{}' has {}, expected an array of {}", object.where(), key,
                       file::json_kind(found), kElements<T>);
  };
  if (!value->is_array()) return wrong(*value);
  std::vector<T> values;
  for (const file::Json& next : *value) {
    std::optional<T> converted = element<T>(next);
    if (!converted) return wrong(next);
    values.push_back(std::move(*converted));
  }
  return std::optional(std::move(values));
}

}  // namespace

std::string Settings::name(Key key) const {
  if (convention() == Convention::kHuggingFace) return std::string(key.hugging_face);
  return key.gguf.empty() ? std::string() : fmt::format("{}.{}", architecture_, key.gguf);
}

std::string Settings::place(Key key) const {
  if (const auto* gguf = std::get_if<const file::Gguf*>(&source_)) {
    return fmt::format("{}: metadata key '{}'", (*gguf)->name(), printable(name(key)));
  }
  return fmt::format("{}: key '{}'", std::get<file::JsonObject>(source_).where(),
                     printable(name(key)));
}

bool Settings::is_null(Key key) const {
  const auto* config = std::get_if<file::JsonObject>(&source_);
  if (config == nullptr) return false;
  const auto found = config->json().find(key.hugging_face);
  return found != config->json().end() && found->is_null();
}

bool Settings::is_array(Key key) const {
  if (const auto* gguf = std::get_if<const file::Gguf*>(&source_)) {
    const file::GgufValue* value = (*gguf)->find(name(key));
    return value != nullptr && value->type == file::GgufType::kArray;
  }
  const file::Json* value = std::get<file::JsonObject>(source_).find(name(key));
  return value != nullptr && value->is_array();
}

Result<std::optional<std::uint64_t>> Settings::unsigned_integer(Key key) const {
  if (const auto* gguf = std::get_if<const file::Gguf*>(&source_)) {
    return (*gguf)->unsigned_integer(name(key));
  }
  return std::get<file::JsonObject>(source_).unsigned_integer(name(key));
}

Result<std::optional<double>> Settings::number(Key key) const {
  if (const auto* gguf = std::get_if<const file::Gguf*>(&source_)) {
    return (*gguf)->number(name(key));
  }
  return std::get<file::JsonObject>(source_).number(name(key));
}

Result<std::optional<bool>> Settings::boolean(Key key) const {
  if (const auto* gguf = std::get_if<const file::Gguf*>(&source_)) {
    return (*gguf)->boolean(name(key));
  }
  return std::get<file::JsonObject>(source_).boolean(name(key));
}

Result<std::optional<std::string>> Settings::string(Key key) const {
  if (const auto* gguf = std::get_if<const file::Gguf*>(&source_)) {
    ESPALIER_TRY(const auto found, (*gguf)->string(name(key)));
    return found ? std::optional(std::string(*found)) : std::nullopt;
  }
  return std::get<file::JsonObject>(source_).string(name(key));
}

Result<std::optional<std::vector<double>>> Settings::numbers(Key key) const {
  if (const auto* gguf = std::get_if<const file::Gguf*>(&source_)) {
    return read_array<double>(**gguf, name(key));
  }
  return read_array<double>(std::get<file::JsonObject>(source_), name(key));
}

Result<std::optional<std::vector<std::string>>> Settings::strings(Key key) const {
  if (const auto* gguf = std::get_if<const file::Gguf*>(&source_)) {
    return read_array<std::string>(**gguf, name(key));
  }
  return read_array<std::string>(std::get<file::JsonObject>(source_), name(key));
}

Result<std::size_t> Settings::count(Key key, std::uint64_t limit, std::uint64_t fallback) const {
  ESPALIER_TRY(const auto found, unsigned_integer(key));
  if (!found && fallback == 0) return input_error("{} is missing", place(key));
  const std::uint64_t count = found.value_or(fallback);
  if (count == 0 || count > limit) {
    return input_error("{}: found {}, expected 1 to {}", place(key), count, limit);
  }
  return count;
}

Result<double> Settings::positive(Key key, double fallback) const {
  ESPALIER_TRY(const auto found, number(key));
  const double value = found.value_or(fallback);
  if (!(value > 0) || !std::isfinite(value)) {
    return input_error("{}: found {}, expected a positive number", place(key), value);
  }
  return value;
}

Result<std::optional<Settings>> Settings::section(std::string_view hugging_face) const {
  if (convention() == Convention::kGguf) return std::optional<Settings>();
  ESPALIER_TRY(auto object, std::get<file::JsonObject>(source_).object(hugging_face));
  return object ? std::optional(Settings(std::move(*object))) : std::nullopt;
}

}  // namespace espalier::model
