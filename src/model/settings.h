// A model's configuration, read the same way out of GGUF metadata and config.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "file/gguf.h"
#include "file/json.h"
#include "model/modules.h"

namespace espalier::model {

// The names of one setting: in GGUF, where the architecture's name and a dot come before it, and in
// config.json. Empty where a container does not have it.
struct Key {
  std::string_view gguf;
  std::string_view hugging_face;
};

// Bounds of what a file may claim, so that no product of them overflows.
inline constexpr std::uint64_t kMaxLayers = 1u << 16;
inline constexpr std::uint64_t kMaxHeads = 1u << 16;  // also of a head's elements
inline constexpr std::uint64_t kMaxWidth = 1u << 24;
inline constexpr std::uint64_t kMaxTokens = 1u << 31;

// A view: the file must outlive it. An absent key, or null in config.json, gives nothing; a value
// of another type is an error that names file, key, what was found and what was expected.
class Settings {
 public:
  Settings(const file::Gguf& gguf, std::string_view architecture)
      : source_(&gguf), architecture_(architecture) {}
  explicit Settings(file::JsonObject config) : source_(std::move(config)) {}

  [[nodiscard]] Convention convention() const {
    return source_.index() == 0 ? Convention::kGguf : Convention::kHuggingFace;
  }

  // How a message begins: "FILE: metadata key 'llama.block_count'".
  [[nodiscard]] std::string place(Key key) const;

  // Whether the key says null, and so that the model does without.
  [[nodiscard]] bool is_null(Key key) const;

  [[nodiscard]] Result<std::optional<std::uint64_t>> unsigned_integer(Key key) const;
  [[nodiscard]] Result<std::optional<double>> number(Key key) const;
  [[nodiscard]] Result<std::optional<bool>> boolean(Key key) const;
  [[nodiscard]] Result<std::optional<std::string>> string(Key key) const;

  // Arrays. Booleans count as the numbers 0 and 1.
  [[nodiscard]] Result<std::optional<std::vector<double>>> numbers(Key key) const;
  [[nodiscard]] Result<std::optional<std::vector<std::string>>> strings(Key key) const;

  // Whether the key holds an array.
  [[nodiscard]] bool is_array(Key key) const;

  // A count of 1 to `limit`. Without a fallback (0) the key must be there.
  [[nodiscard]] Result<std::size_t> count(Key key, std::uint64_t limit,
                                          std::uint64_t fallback = 0) const;

  // A positive finite number.
  [[nodiscard]] Result<double> positive(Key key, double fallback) const;

  // An object within config.json; GGUF has none.
  [[nodiscard]] Result<std::optional<Settings>> section(std::string_view hugging_face) const;

 private:
  [[nodiscard]] std::string name(Key key) const;

  std::variant<const file::Gguf*, file::JsonObject> source_;
  std::string architecture_;
};

}  // namespace espalier::model
