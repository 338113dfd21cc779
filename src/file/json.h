// The JSON documents of model directories: parsed within bounds, and read with typed access whose
// errors name file and key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"

namespace espalier::file {

using Json = nlohmann::json;

inline constexpr std::uint64_t kMaxJsonBytes = 256ull << 20;  // tokenizers reach tens of megabytes
inline constexpr int kMaxJsonDepth = 64;

// Parses a document; `name` stands for it in messages. Errors: too large, nested deeper than
// kMaxJsonDepth, not JSON, not UTF-8, not an object.
[[nodiscard]] Result<Json> parse_json(Bytes bytes, const std::string& name);
[[nodiscard]] Result<Json> read_json(const std::filesystem::path& path);

// What `value` is, in a message: "a string", "an object", …
[[nodiscard]] std::string_view json_kind(const Json& value);

// An object of a document, which must outlive it. An absent or null key gives nothing; one of
// another type, or a number that does not fit, is an error that names file, key, what was found and
// what was expected.
class JsonObject {
 public:
  // `where` names the object in messages: the file, and the keys that lead to the object.
  JsonObject(const Json& object, std::string where) : object_(&object), where_(std::move(where)) {}

  [[nodiscard]] const Json& json() const { return *object_; }
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const Json* find(std::string_view key) const;

  [[nodiscard]] Result<std::optional<std::int64_t>> integer(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::uint64_t>> unsigned_integer(std::string_view key) const;
  [[nodiscard]] Result<std::optional<double>> number(std::string_view key) const;
  [[nodiscard]] Result<std::optional<bool>> boolean(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::string>> string(std::string_view key) const;
  [[nodiscard]] Result<std::optional<JsonObject>> object(std::string_view key) const;

 private:
  [[nodiscard]] Error wrong_type(std::string_view key, std::string_view expected) const;

  const Json* object_;
  std::string where_;
};

}  // namespace espalier::file
