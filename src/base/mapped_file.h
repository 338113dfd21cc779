// A file mapped read-only into memory.
#pragma once

#include <filesystem>

#include "base/bytes.h"
#include "base/result.h"

namespace espalier {

class MappedFile {
 public:
  // Maps `path`. A directory, an unreadable or an empty file is an input error.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] Bytes bytes() const { return bytes_; }

  // Gives the memory of what was read so far back to the system, which reads it again when needed.
  void release_pages() const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile(std::filesystem::path path, Bytes bytes) : path_(std::move(path)), bytes_(bytes) {}

  std::filesystem::path path_;
  Bytes bytes_;
};

}  // namespace espalier
