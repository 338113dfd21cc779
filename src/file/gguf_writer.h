// Writing GGUF files: version 3, little-endian, one file.
//
//   GgufMetadata metadata;
//   metadata.set("general.architecture", std::string("llama"));
//   ESPALIER_TRY(auto file, create_gguf(path, metadata, {{"output.weight", format, {576,
//   49152}}})); ESPALIER_CHECK(file.write("output.weight", bytes));  // in as many chunks as one
//   likes ESPALIER_CHECK(file.finish());
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "file/gguf.h"
#include "file/tensor_file.h"

namespace espalier::file {

// Keys and values in the order in which they were first set.
class GgufMetadata {
 public:
  // Sets a key to a value of exactly the type T, one of the C++ types of gguf_type_of(), or to a
  // vector of such. A key that is there already keeps its place.
  template <typename T>
  void set(std::string_view key, const T& value) {
    set_bytes(key, gguf_type_of<T>(), encode(value));
  }
  template <typename T>
  void set(std::string_view key, const std::vector<T>& values) {
    std::string bytes = encode_array_head(gguf_type_of<T>(), values.size());
    for (const T& value : values) bytes += encode(value);
    set_bytes(key, GgufType::kArray, std::move(bytes));
  }
  // Sets a key to a value of another file.
  void set(std::string_view key, const GgufValue& value);

  // A whole file of these keys and no tensors. (create_gguf checks keys; this does not.)
  [[nodiscard]] std::string bytes() const;

 private:
  friend Result<TensorFile> create_gguf(const std::filesystem::path& path,
                                        const GgufMetadata& metadata,
                                        const std::vector<struct GgufDeclaration>& tensors);

  struct Entry {
    std::string key;
    GgufType type;
    std::string bytes;
  };

  void set_bytes(std::string_view key, GgufType type, std::string bytes);
  static std::string encode_array_head(GgufType element, std::uint64_t count);
  static std::string encode(const std::string& text);
  template <typename T>
  static std::string encode(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(T)};
  }

  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

struct GgufDeclaration {
  std::string name;
  const pack::Format* format = nullptr;
  std::vector<std::uint64_t> dims;  // as GgufTensor::dims
};

// Writes everything but the tensors' bytes, in which they lie in the order given. They are aligned
// to general.alignment, or 32 where the metadata do not set it. Errors: an empty or too long key or
// name, a tensor declared twice, dimensions or an alignment that a reader would refuse, a format
// that GGUF has no number for, a path that exists and is no regular file.
[[nodiscard]] Result<TensorFile> create_gguf(const std::filesystem::path& path,
                                             const GgufMetadata& metadata,
                                             const std::vector<GgufDeclaration>& tensors);

}  // namespace espalier::file
