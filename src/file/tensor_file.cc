#include "file/tensor_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/printable.h"

namespace espalier::file {

Result<TensorFile> TensorFile::create(const std::filesystem::path& path, std::string_view header,
                                      Regions regions, std::uint64_t size) {
  std::error_code ignored;
  const std::filesystem::file_status existing = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(existing) && !std::filesystem::is_regular_file(existing)) {
    return input_error("{}: exists and is not a regular file", path.string());
  }
  TensorFile file;
  file.path_ = path;
  file.regions_ = std::move(regions);
  std::filesystem::path partial = path;
  partial += fmt::format(".{}.partial", ::getpid());
  file.descriptor_ = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file.descriptor_ < 0) {
    return work_error("{}: cannot create: {}", partial.string(), strerror(errno));
  }
  file.partial_path_ = std::move(partial);
  ESPALIER_CHECK(file.write_at(as_bytes(header), 0));
  if (::ftruncate(file.descriptor_, static_cast<off_t>(size)) != 0) {
    return work_error("{}: cannot make a file of {} bytes: {}", path.string(), size,
                      strerror(errno));
  }
  return file;
}

Status TensorFile::write_at(Bytes bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return work_error("{}: cannot write: {}", path_.string(), strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

Status TensorFile::write(std::string_view name, Bytes chunk) {
  const auto found = regions_.find(name);
  if (found == regions_.end()) {
    return work_error("{}: tensor '{}' was not declared", path_.string(), printable(name));
  }
  Region& region = found->second;
  if (chunk.size() > region.end - region.next) {
    return work_error("{}: tensor '{}': {} bytes given, {} are left of what was declared",
                      path_.string(), printable(name), chunk.size(), region.end - region.next);
  }
  ESPALIER_CHECK(write_at(chunk, region.next));
  region.next += chunk.size();
  return {};
}

Status TensorFile::finish() {
  for (const auto& [name, region] : regions_) {
    if (region.next != region.end) {
      return work_error("{}: tensor '{}': {} of its bytes were never written", path_.string(),
                        printable(name), region.end - region.next);
    }
  }
  // Synced before the rename, so that a crash leaves the old file or the whole new one.
  if (::fsync(descriptor_) != 0 || ::close(std::exchange(descriptor_, -1)) != 0 ||
      ::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    return work_error("{}: cannot write: {}", path_.string(), strerror(errno));
  }
  partial_path_.clear();
  return {};
}

TensorFile::TensorFile(TensorFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_path_(std::exchange(other.partial_path_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      regions_(std::move(other.regions_)) {}

TensorFile& TensorFile::operator=(TensorFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(partial_path_, other.partial_path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(regions_, other.regions_);
  return *this;
}

TensorFile::~TensorFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!partial_path_.empty()) ::unlink(partial_path_.c_str());
}

}  // namespace espalier::file
