// safetensors, the container of Hugging Face models: a length, a JSON header that lists the
// tensors, then their bytes. Source: the format section of the README of huggingface/safetensors.
//
// Nothing is copied: tensors are views into the mapped file. Everything the views promise was
// checked when the file was opened, so using them cannot fail.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "file/tensor_file.h"

namespace espalier::file {

enum class Dtype : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
  kC64,
};

// The name in headers: "BF16", "F8_E4M3", …
[[nodiscard]] std::string_view dtype_name(Dtype dtype);

// Bits of one element: 4 (F4) to 64.
[[nodiscard]] std::uint64_t dtype_bits(Dtype dtype);

// The dtype of that name (exact), or nothing.
[[nodiscard]] std::optional<Dtype> find_dtype(std::string_view name);

// A shape as messages and `inspect` print it: "[512, 32]".
[[nodiscard]] std::string shape_text(std::span<const std::uint64_t> shape);

// The bytes of a tensor, or nothing when its size overflows or is not whole bytes.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(Dtype dtype,
                                                        std::span<const std::uint64_t> shape);

struct SafetensorsTensor {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint64_t> shape;  // slowest varying first; empty for a scalar
  Bytes data;                        // exactly the tensor's bytes, not necessarily aligned
};

class Safetensors {
 public:
  static Result<Safetensors> open(const std::filesystem::path& path);

  // Reads one file's bytes, which must outlive the result; `name` stands for it in messages.
  static Result<Safetensors> parse(Bytes bytes, std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }  // the path, for messages
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Tensors in the order of their bytes in the file, and by name.
  [[nodiscard]] std::span<const SafetensorsTensor> tensors() const { return tensors_; }
  [[nodiscard]] const SafetensorsTensor* find(std::string_view tensor_name) const;

  // See MappedFile; for files that were opened.
  void release_pages() const {
    if (file_) file_->release_pages();
  }

 private:
  std::string name_;
  std::optional<MappedFile> file_;
  std::map<std::string, std::string> metadata_;
  std::vector<SafetensorsTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> index_;
};

// Writes a file whose tensors need not be in memory at once: all are declared first, then their
// bytes arrive in chunks, in any order of tensors. The file appears under its name only when
// `finish` succeeds; until then, and after any error, it lies beside it and is removed with the
// writer. The same tensors give the same bytes.
class SafetensorsWriter {
 public:
  struct Declaration {
    std::string name;
    Dtype dtype = Dtype::kF32;
    std::vector<std::uint64_t> shape;
  };

  // Writes the header. Errors: a name twice or "__metadata__", a size that overflows or is not
  // whole bytes, text that is not UTF-8, a path that exists and is no regular file.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path,
                                          std::vector<Declaration> tensors,
                                          const std::map<std::string, std::string>& metadata = {});

  // The next bytes of the declared tensor `name`.
  Status write(std::string_view name, Bytes chunk) { return file_.write(name, chunk); }

  // Checks that every declared byte was written, and gives the file its name.
  Status finish() { return file_.finish(); }

 private:
  explicit SafetensorsWriter(TensorFile file) : file_(std::move(file)) {}

  TensorFile file_;
};

}  // namespace espalier::file
