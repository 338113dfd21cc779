// Makes small GGUF files in memory, right ones and wrong ones: nothing is checked, and every number
// in the file can be set to what it should not be.
//
//   GgufBuilder file;
//   file.add("general.architecture", "llama").add("llama.block_count", std::uint32_t{2});
//   file.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
//   file.tensor("output_norm.weight", {64}, std::vector<float>(64, 1.0f));
//   file.write(path);
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "file/gguf.h"

namespace espalier::test {

// `value` as little-endian bytes.
template <typename T>
std::string le_bytes(T value) {
  static_assert(std::is_arithmetic_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

// A string as GGUF writes it: its length in 8 bytes, then its bytes.
std::string gguf_string(std::string_view text);

// An array's bytes after the type of the value: element type, count, elements.
std::string gguf_array(file::GgufType element, std::uint64_t count, std::string_view elements);

template <typename T>
std::string gguf_bytes(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return gguf_string(value);
  } else {
    return le_bytes(value);
  }
}

class GgufBuilder {
 public:
  // What the header says; the counts are the true ones unless set.
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::optional<std::uint64_t> tensor_count, key_count;

  // To what tensors are padded. It is not written: add the key general.alignment for that.
  std::uint64_t alignment = 32;

  // A key with a value of type T: a number of exactly that type, bool, std::string, or a vector of
  // these. A key may be added twice, which makes a wrong file.
  template <typename T>
  GgufBuilder& add(std::string_view key, const T& value) {
    return add_raw(key, static_cast<std::uint32_t>(file::gguf_type_of<T>()), gguf_bytes(value));
  }
  template <typename T>
  GgufBuilder& add(std::string_view key, const std::vector<T>& values) {
    std::string elements;
    for (const T& value : values) elements += gguf_bytes<T>(value);
    return add_raw(key, static_cast<std::uint32_t>(file::GgufType::kArray),
                   gguf_array(file::gguf_type_of<T>(), values.size(), elements));
  }
  GgufBuilder& add(std::string_view key, const char* text) { return add(key, std::string(text)); }

  // A key whose value is these bytes, whatever they are.
  GgufBuilder& add_raw(std::string_view key, std::uint32_t type, std::string_view value);

  // What a tensor's entry says. By default the offset is the next free one.
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dims;  // fastest varying first
    std::uint32_t type = 0;           // ggml's number
    std::string data;
    std::optional<std::uint64_t> offset;
  };
  GgufBuilder& tensor(Tensor tensor);

  // A tensor of F32 values.
  GgufBuilder& tensor(std::string_view name, std::vector<std::uint64_t> dims,
                      const std::vector<float>& values);

  // A tensor that `format` packs from values [product of the other dims, dims[0]].
  GgufBuilder& tensor(std::string_view name, std::vector<std::uint64_t> dims,
                      std::string_view format, const std::vector<float>& values);

  // The whole file; write() puts it at `path`, which it returns.
  [[nodiscard]] std::string bytes() const;
  std::filesystem::path write(const std::filesystem::path& path) const;

 private:
  std::vector<std::string> keys_;
  std::vector<Tensor> tensors_;
};

}  // namespace espalier::test
