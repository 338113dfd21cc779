// Fetching files over several connections, going on where an earlier try was broken off, and
// checking what arrived.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"
#include "hub/hub.h"

namespace espalier::hub {

struct DownloadOptions {
  std::size_t connections = 8;
  std::uint64_t piece_bytes = 16ull << 20;  // large files are fetched in pieces of this size
  int tries = 6;                            // without a byte of progress, until a piece is given up
  double first_pause = 1;                   // seconds before the second try; then twice as long
};

// A file to fetch and where it comes from.
struct Fetch {
  RemoteFile file;
  std::string url;
};

// Fetches all files into `folder`. While it is fetched a file is called PATH.part, and
// PATH.part.pieces says which of its pieces are there, so that a second call goes on where the
// first was broken off. Only a file whose size and checksum are right gets its name; those that
// have it already are left alone. Shows progress; Ctrl+C stops it and keeps what is there.
// Errors: no space, the server's refusal, bytes that contradict the announced size or checksum.
[[nodiscard]] Status download(std::span<const Fetch> files, const std::filesystem::path& folder,
                              const std::string& token, const DownloadOptions& options = {});

}  // namespace espalier::hub
