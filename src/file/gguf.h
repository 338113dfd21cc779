// GGUF, the container of llama.cpp: metadata as key-value pairs, then tensors of packed blocks.
// Versions 2 and 3, little-endian; a model split into -00001-of-0000N files opens as one.
//
// Nothing is copied: strings, arrays and tensors are views into the mapped files. Everything the
// views promise was checked when the file was opened, so using them cannot fail.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "pack/matrix.h"

namespace espalier::file {

// Type numbers of metadata values, as in the file.
enum class GgufType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// The limits of the specification on keys, and the alignment of files that do not name one.
inline constexpr std::uint64_t kMaxGgufKeyBytes = 65535;
inline constexpr std::uint64_t kDefaultGgufAlignment = 32;

// The type of metadata that holds a T.
template <typename T>
[[nodiscard]] constexpr GgufType gguf_type_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return GgufType::kUint8;
  if constexpr (std::is_same_v<T, std::int8_t>) return GgufType::kInt8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return GgufType::kUint16;
  if constexpr (std::is_same_v<T, std::int16_t>) return GgufType::kInt16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return GgufType::kUint32;
  if constexpr (std::is_same_v<T, std::int32_t>) return GgufType::kInt32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return GgufType::kUint64;
  if constexpr (std::is_same_v<T, std::int64_t>) return GgufType::kInt64;
  if constexpr (std::is_same_v<T, float>) return GgufType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return GgufType::kFloat64;
  if constexpr (std::is_same_v<T, bool>) return GgufType::kBool;
  if constexpr (std::is_same_v<T, std::string>) return GgufType::kString;
}

// Bytes of a value of that type; of a string or an array, the least it can take.
[[nodiscard]] std::uint64_t type_bytes(GgufType type);

// The type's name as error messages and `inspect` print it: "uint32", "string", …
[[nodiscard]] std::string_view type_name(GgufType type);

// An array in the metadata; `bytes` holds its elements as they lie in the file.
struct GgufArray {
  GgufType element = GgufType::kUint8;
  std::uint64_t count = 0;
  Bytes bytes;
};

struct GgufValue {
  GgufType type = GgufType::kUint8;
  // Unsigned and signed integers are widened, both floats are doubles.
  std::variant<std::uint64_t, std::int64_t, double, bool, std::string_view, GgufArray> value;
};

// What a value is, as messages and `inspect` say it: "uint32 7", "string 'llama'",
// "array of 3 × float32". Long strings are abbreviated.
[[nodiscard]] std::string describe(const GgufValue& value);

// Walks the elements of an array; those of an array of arrays are arrays.
class GgufElements {
 public:
  explicit GgufElements(const GgufArray& array)
      : element_(array.element), left_(array.count), cursor_(array.bytes) {}

  // The next element, or nothing at the end.
  std::optional<GgufValue> next();

 private:
  GgufType element_;
  std::uint64_t left_;
  Cursor cursor_;
};

struct GgufTensor {
  std::string_view name;
  const pack::Format* format = nullptr;
  // 1 to 4, none of them 0, fastest varying first: {input features, output features}.
  std::vector<std::uint64_t> dims;
  Bytes data;                // exactly the tensor's bytes; they need not be aligned in memory
  std::size_t part = 0;      // which file of a split model
  std::uint64_t offset = 0;  // of `data` in that file

  // The tensor as [product of the other dims, dims[0]].
  [[nodiscard]] pack::Matrix matrix() const;
};

// Bytes of a tensor. Errors: not 1 to 4 dimensions, one that is 0, a first one that does not fill
// whole blocks, a product that overflows.
[[nodiscard]] Result<std::uint64_t> tensor_bytes(const pack::Format& format,
                                                 std::span<const std::uint64_t> dims);

// `value` up to the next multiple of `alignment`, a power of two; nothing where that overflows.
[[nodiscard]] inline std::optional<std::uint64_t> align_up(std::uint64_t value,
                                                           std::uint64_t alignment) {
  const auto sum = checked_add(value, alignment - 1);
  return sum ? std::optional(*sum & ~(alignment - 1)) : std::nullopt;
}

class Gguf {
 public:
  // Opens a file, or all parts of a split model when `path` is its first part. The metadata are
  // the first part's, the tensors those of all parts.
  static Result<Gguf> open(const std::filesystem::path& path);

  // Reads one file's bytes, which must outlive the result; `name` stands for it in messages. A
  // part of a split model is read by itself.
  static Result<Gguf> parse(Bytes bytes, std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }  // the path, for messages
  [[nodiscard]] std::uint32_t version() const { return version_; }
  [[nodiscard]] std::uint64_t alignment() const { return alignment_; }
  [[nodiscard]] std::size_t parts() const { return parts_; }

  // Metadata in file order. Keys are not empty and unique.
  [[nodiscard]] std::span<const std::pair<std::string_view, GgufValue>> metadata() const {
    return metadata_;
  }
  [[nodiscard]] const GgufValue* find(std::string_view key) const;

  // Tensors in file order, and by name. Names are not empty and unique.
  [[nodiscard]] std::span<const GgufTensor> tensors() const { return tensors_; }
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const;

  // Typed access. An absent key gives nothing; a key of another type, or a number that does not
  // fit, is an error that names file, key, what was found and what was expected. Any integer type
  // is accepted for integers, and floats and integers for floats. A single value is not an array.
  [[nodiscard]] Result<std::optional<std::uint64_t>> unsigned_integer(std::string_view key) const;
  [[nodiscard]] Result<std::optional<double>> number(std::string_view key) const;
  [[nodiscard]] Result<std::optional<bool>> boolean(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::string_view>> string(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::vector<std::string_view>>> strings(
      std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::vector<std::int64_t>>> integers(
      std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::vector<double>>> numbers(std::string_view key) const;

  // See MappedFile; for files that were opened.
  void release_pages() const {
    for (const MappedFile& file : files_) file.release_pages();
  }

 private:
  Status read_metadata(Cursor& cursor, std::uint64_t count);
  Status read_tensors(Cursor& cursor, std::uint64_t count, Bytes file);
  Status check_overlaps() const;
  Status add_part(Gguf part);
  Status add_other_parts(const std::filesystem::path& first, std::uint64_t count);

  std::string name_;
  std::uint32_t version_ = 0;
  std::uint64_t alignment_ = kDefaultGgufAlignment;
  std::size_t parts_ = 1;
  std::vector<MappedFile> files_;
  std::vector<std::pair<std::string_view, GgufValue>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, std::size_t> key_index_;
  std::map<std::string_view, std::size_t> tensor_index_;
};

// `value`, or an error saying that `key` is missing from `gguf`.
template <typename T>
[[nodiscard]] Result<T> required(const Gguf& gguf, std::string_view key,
                                 Result<std::optional<T>> value) {
  if (!value) return std::move(value.error());
  if (!*value) return input_error("{}: metadata key '{}' is missing", gguf.name(), key);
  return std::move(**value);
}

}  // namespace espalier::file
