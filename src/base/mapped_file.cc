#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace espalier {

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return input_error("{}: cannot open: {}", path.string(), strerror(errno));
  struct stat info = {};
  if (::fstat(descriptor, &info) != 0) {
    Error error = work_error("{}: cannot read its size: {}", path.string(), strerror(errno));
    ::close(descriptor);
    return error;
  }
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    ::close(descriptor);
    return input_error("{}: expected a file, found {}", path.string(),
                       S_ISDIR(info.st_mode)   ? "a directory"
                       : S_ISREG(info.st_mode) ? "an empty file"
                                               : "something that is not a regular file");
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  const int map_errno = errno;
  ::close(descriptor);  // the mapping keeps the file open
  if (address == MAP_FAILED) {
    return work_error("{}: cannot map {} bytes: {}", path.string(), size, strerror(map_errno));
  }
  return MappedFile(path, Bytes(static_cast<const std::byte*>(address), size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::release_pages() const {
  // A piece of advice: that it may fail costs nothing but memory.
  (void)::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace espalier
