// Checksums of files as repositories publish them.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"

namespace espalier::hub {

enum class DigestKind {
  kSha256,   // of large files
  kGitBlob,  // of the others: SHA-1 of "blob SIZE\0" and the bytes, Git's name for them
};

// The digest of a whole file in lower-case hexadecimal digits. `seen` is told how many more bytes
// were read, and ends the work by returning false. Errors: the file cannot be read; the work ended.
[[nodiscard]] Result<std::string> file_digest(const std::filesystem::path& path, DigestKind kind,
                                              const std::function<bool(std::uint64_t)>& seen);

}  // namespace espalier::hub
