// A container file in the making: a header, and the places of named tensors, whose bytes come in
// chunks. What the writers of GGUF and safetensors share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"

namespace espalier::file {

// The file appears under its name only when `finish` succeeds; until then, and after any error, it
// lies beside it and is removed with this object. Bytes that no tensor covers are 0.
class TensorFile {
 public:
  struct Region {
    std::uint64_t next = 0;  // file offset of the tensor's next unwritten byte
    std::uint64_t end = 0;
  };
  using Regions = std::map<std::string, Region, std::less<>>;

  // Writes the header at the front of a file of `size` bytes, in which the regions lie. A path that
  // exists and is no regular file is an input error.
  static Result<TensorFile> create(const std::filesystem::path& path, std::string_view header,
                                   Regions regions, std::uint64_t size);

  // The next bytes of the tensor `name`. Tensors may take turns.
  Status write(std::string_view name, Bytes chunk);

  // Checks that every tensor was written whole, and gives the file its name.
  Status finish();

  TensorFile(TensorFile&& other) noexcept;
  TensorFile& operator=(TensorFile&& other) noexcept;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;
  ~TensorFile();

 private:
  TensorFile() = default;
  Status write_at(Bytes bytes, std::uint64_t offset);

  std::filesystem::path path_;
  std::filesystem::path partial_path_;  // empty once finished
  int descriptor_ = -1;
  Regions regions_;
};

}  // namespace espalier::file
