#include "hub/download.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <optional>
#include <vector>

#include "base/interrupt.h"
#include "base/printable.h"
#include "base/progress.h"
#include "base/timer.h"
#include "hub/digest.h"
#include "hub/http.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

constexpr int kPollMilliseconds = 100;
constexpr std::uint64_t kMegabyte = 1000000;

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

struct Range {
  std::uint64_t begin = 0, end = 0;  // bytes of the file
};

// A file on its way.
struct Target {
  const Fetch* fetch = nullptr;
  fs::path path, part, journal;
  Descriptor fd;
  std::uint64_t piece_bytes = 0;
  std::vector<Range> later;    // pieces to ask for once the server has shown that it knows ranges
  std::uint64_t received = 0;  // bytes of finished pieces
};

// One piece being asked for, maybe repeatedly.
struct Transfer {
  Target* target = nullptr;
  Range range;
  std::uint64_t position = 0;  // where the next byte goes
  std::uint64_t furthest = 0;  // the highest position so far
  int failures = 0;            // since `furthest` grew
  double not_before = 0;       // seconds on the clock of the download
  bool answered = false;       // the answer's head was checked
  Easy easy;
  std::optional<Error> error;  // a contradiction, which no other try will mend
};

std::string journal_head(const Target& target) {
  const RemoteFile& file = target.fetch->file;
  return fmt::format("{} {} {}", file.size, file.sha256.empty() ? file.git_blob : file.sha256,
                     target.piece_bytes);
}

// Opens the partial file and its journal, and queues what is missing.
Status open_target(Target& target, std::vector<Range>& missing) {
  const std::uint64_t size = target.fetch->file.size;
  std::error_code error;
  fs::create_directories(target.path.parent_path(), error);
  target.fd = Descriptor(::open(target.part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (target.fd.get() < 0) {
    return work_error("{}: cannot be written: {}", target.part.string(), std::strerror(errno));
  }
  if (::flock(target.fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return work_error("{}: another process is fetching this file", target.path.string());
  }

  const std::uint64_t pieces = (size + target.piece_bytes - 1) / target.piece_bytes;
  std::vector<bool> there(pieces, false);
  std::ifstream journal(target.journal);
  std::string head;
  const bool known = std::getline(journal, head) && head == journal_head(target) &&
                     fs::file_size(target.part, error) == size;
  if (known) {
    for (std::uint64_t piece = 0; journal >> piece;) {
      if (piece < pieces) there[piece] = true;
    }
  } else {
    std::ofstream(target.journal, std::ios::trunc) << journal_head(target) << '\n';
    if (::ftruncate(target.fd.get(), 0) != 0 ||
        ::ftruncate(target.fd.get(), static_cast<off_t>(size)) != 0) {
      return work_error("{}: cannot be made {} bytes long: {}", target.part.string(), size,
                        std::strerror(errno));
    }
  }
  for (std::uint64_t piece = 0; piece < pieces; ++piece) {
    const Range range = {piece * target.piece_bytes,
                         std::min(size, (piece + 1) * target.piece_bytes)};
    if (there[piece]) {
      target.received += range.end - range.begin;
    } else {
      missing.push_back(range);
    }
  }
  return {};
}

class Download {
 public:
  Download(std::string token, const DownloadOptions& options)
      : token_(std::move(token)), options_(options), multi_(curl_multi_init()) {}
  Download(const Download&) = delete;
  Download& operator=(const Download&) = delete;
  ~Download() {
    for (const auto& transfer : active_) curl_multi_remove_handle(multi_, transfer->easy.get());
    active_.clear();
    curl_multi_cleanup(multi_);
  }

  Status run(std::span<const Fetch> files, const fs::path& folder);

 private:
  Status open(std::span<const Fetch> files, const fs::path& folder);
  Status fetch_pieces();
  Status start_waiting();
  Status start(std::unique_ptr<Transfer> transfer);
  Status finish(CURL* handle, CURLcode code);
  Status check_and_name();
  [[nodiscard]] Status check_digest(const Target& target, Progress& progress, std::uint64_t& seen);
  [[nodiscard]] std::uint64_t received() const;

  // Callback of curl for bytes that arrived; `user` is the Transfer.
  static std::size_t receive(char* data, std::size_t, std::size_t size, void* user);
  // Checks status, range and length of an answer whose first bytes arrive.
  static std::optional<Error> check_answer(Transfer& transfer);

  std::string token_;
  DownloadOptions options_;
  CURLM* multi_;
  Timer clock_;
  std::vector<std::unique_ptr<Target>> targets_;
  std::deque<std::unique_ptr<Transfer>> waiting_;
  std::vector<std::unique_ptr<Transfer>> active_;
  std::uint64_t total_ = 0;
};

Status Download::open(std::span<const Fetch> files, const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return work_error("{}: cannot be made: {}", folder.string(), error.message());
  std::uint64_t needed = 0;
  for (const Fetch& fetch : files) {
    const fs::path path = folder / fetch.file.path;
    if (fs::exists(path, error) && fs::file_size(path, error) == fetch.file.size) continue;
    auto target = std::make_unique<Target>();
    target->fetch = &fetch;
    target->path = path;
    target->part = fs::path(path).concat(".part");
    target->journal = fs::path(path).concat(".part.pieces");
    target->piece_bytes = std::max<std::uint64_t>(options_.piece_bytes, 1);
    std::vector<Range> missing;
    ESPALIER_CHECK(open_target(*target, missing));
    total_ += fetch.file.size;
    needed += fetch.file.size - target->received;
    if (!missing.empty()) {
      // One piece shows whether the server knows ranges; the others follow if so.
      auto first = std::make_unique<Transfer>();
      first->target = target.get();
      first->range = missing.front();
      first->position = first->furthest = missing.front().begin;
      waiting_.push_back(std::move(first));
      target->later.assign(missing.begin() + 1, missing.end());
    }
    targets_.push_back(std::move(target));
  }
  const fs::space_info space = fs::space(folder, error);
  if (!error && space.available < needed) {
    return work_error("{}: {} MB are free, {} are needed", folder.string(),
                      space.available / kMegabyte, needed / kMegabyte + 1);
  }
  return {};
}

std::uint64_t Download::received() const {
  std::uint64_t bytes = 0;
  for (const auto& target : targets_) bytes += target->received;
  for (const auto& transfer : active_) bytes += transfer->position - transfer->range.begin;
  for (const auto& transfer : waiting_) bytes += transfer->position - transfer->range.begin;
  return bytes;
}

std::optional<Error> Download::check_answer(Transfer& transfer) {
  Target& target = *transfer.target;
  const std::uint64_t size = target.fetch->file.size;
  const std::string name = printable(target.fetch->file.path);
  CURL* handle = transfer.easy.get();
  long status = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  if (status == 206) {
    curl_header* header = nullptr;
    unsigned long long begin = 0;
    unsigned long long end = 0;
    unsigned long long all = 0;
    const bool read =
        curl_easy_header(handle, "Content-Range", 0, CURLH_HEADER, -1, &header) == CURLHE_OK &&
        std::sscanf(header->value, "bytes %llu-%llu/%llu", &begin, &end, &all) == 3;
    if (!read || begin != transfer.position || end + 1 != transfer.range.end || all != size) {
      return work_error("{}: asked for bytes {}-{} of {}, the server sends '{}'", name,
                        transfer.position, transfer.range.end - 1, size,
                        read ? printable(header->value) : "no Content-Range");
    }
    return std::nullopt;
  }
  // The whole file, from a server that knows no ranges or was not asked for one.
  curl_off_t length = -1;
  curl_easy_getinfo(handle, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  if (length >= 0 && static_cast<std::uint64_t>(length) != size) {
    return work_error("{}: the server sends {} bytes, its listing says {}", name, length, size);
  }
  target.later.clear();
  target.received = 0;
  transfer.range = {0, size};
  transfer.position = 0;
  return std::nullopt;
}

std::size_t Download::receive(char* data, std::size_t, std::size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  if (!transfer.answered) {
    transfer.answered = true;
    transfer.error = check_answer(transfer);
    if (transfer.error) return 0;
  }
  if (size > transfer.range.end - transfer.position) {
    transfer.error =
        work_error("{}: the server sends more than the {} bytes it announced",
                   printable(transfer.target->fetch->file.path), transfer.target->fetch->file.size);
    return 0;
  }
  for (std::size_t written = 0; written < size;) {
    const ssize_t count = ::pwrite(transfer.target->fd.get(), data + written, size - written,
                                   static_cast<off_t>(transfer.position + written));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      transfer.error = work_error("{}: writing failed: {}", transfer.target->part.string(),
                                  std::strerror(errno));
      return 0;
    }
    written += static_cast<std::size_t>(count);
  }
  transfer.position += size;
  return size;
}

Status Download::start(std::unique_ptr<Transfer> transfer) {
  transfer->easy = make_request(transfer->target->fetch->url, token_);
  CURL* handle = transfer->easy.get();
  if (handle == nullptr) return work_error("curl could not start");
  transfer->answered = false;
  if (transfer->position != 0 || transfer->range.end != transfer->target->fetch->file.size) {
    const std::string range = fmt::format("{}-{}", transfer->position, transfer->range.end - 1);
    curl_easy_setopt(handle, CURLOPT_RANGE, range.c_str());
  }
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, receive);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, transfer.get());
  if (curl_multi_add_handle(multi_, handle) != CURLM_OK) return work_error("curl could not start");
  active_.push_back(std::move(transfer));
  return {};
}

Status Download::start_waiting() {
  const double now = clock_.seconds();
  for (auto it = waiting_.begin(); it != waiting_.end() && active_.size() < options_.connections;) {
    if ((*it)->not_before > now) {
      ++it;
      continue;
    }
    std::unique_ptr<Transfer> transfer = std::move(*it);
    it = waiting_.erase(it);
    ESPALIER_CHECK(start(std::move(transfer)));
  }
  return {};
}

// A request ended: its piece is done, goes back to the queue, or ends the download.
Status Download::finish(CURL* handle, CURLcode code) {
  const auto found = std::find_if(active_.begin(), active_.end(), [handle](const auto& transfer) {
    return transfer->easy.get() == handle;
  });
  std::unique_ptr<Transfer> transfer = std::move(*found);
  active_.erase(found);
  curl_multi_remove_handle(multi_, handle);
  if (transfer->error) return std::move(*transfer->error);

  Target& target = *transfer->target;
  long status = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  if (code == CURLE_OK && transfer->position == transfer->range.end) {
    target.received += transfer->range.end - transfer->range.begin;
    std::ofstream journal(target.journal, std::ios::app);
    for (std::uint64_t at = transfer->range.begin; at < transfer->range.end;
         at += target.piece_bytes) {
      journal << at / target.piece_bytes << '\n';
    }
    for (const Range& range : std::exchange(target.later, {})) {
      auto next = std::make_unique<Transfer>();
      next->target = &target;
      next->range = range;
      next->position = next->furthest = range.begin;
      waiting_.push_back(std::move(next));
    }
    return {};
  }
  if (code == CURLE_OK) code = CURLE_PARTIAL_FILE;  // an end without a length, but too early
  const std::string& url = target.fetch->url;
  if (!is_transient(code, status)) return request_error(url, code, status);
  if (transfer->position > transfer->furthest) {
    transfer->furthest = transfer->position;
    transfer->failures = 0;
  }
  if (++transfer->failures >= options_.tries) {
    Error error = request_error(url, code, status);
    error.message += fmt::format("; given up after {} tries at byte {}; what arrived is kept",
                                 options_.tries, transfer->position);
    return error;
  }
  transfer->not_before =
      clock_.seconds() + retry_pause(options_.first_pause, transfer->failures, handle);
  waiting_.push_back(std::move(transfer));
  return {};
}

Status Download::fetch_pieces() {
  const std::atomic<bool>& stop = interrupted();
  Progress progress("fetching", total_ / kMegabyte, "MB");
  while (!waiting_.empty() || !active_.empty()) {
    if (stop) {
      return work_error("interrupted; {} of {} MB are kept, the same command goes on from there",
                        received() / kMegabyte, total_ / kMegabyte);
    }
    ESPALIER_CHECK(start_waiting());
    curl_multi_poll(multi_, nullptr, 0, kPollMilliseconds, nullptr);
    int running = 0;
    curl_multi_perform(multi_, &running);
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
      if (message->msg == CURLMSG_DONE) {
        ESPALIER_CHECK(finish(message->easy_handle, message->data.result));
      }
    }
    progress.update(received() / kMegabyte);
  }
  return {};
}

Status Download::check_digest(const Target& target, Progress& progress, std::uint64_t& seen) {
  const std::atomic<bool>& stop = interrupted();
  const RemoteFile& file = target.fetch->file;
  const bool large = !file.sha256.empty();
  const std::string& expected = large ? file.sha256 : file.git_blob;
  ESPALIER_TRY(const std::string digest,
               file_digest(target.part, large ? DigestKind::kSha256 : DigestKind::kGitBlob,
                           [&](std::uint64_t count) {
                             seen += count;
                             progress.update(seen / kMegabyte);
                             return !stop;
                           }));
  if (digest == expected) return {};
  std::error_code error;
  fs::remove(target.part, error);
  fs::remove(target.journal, error);
  return work_error("{}: its {} is {}, expected {}; what arrived was thrown away",
                    printable(file.path), large ? "SHA-256" : "Git blob hash", digest, expected);
}

Status Download::check_and_name() {
  Progress progress("checking", total_ / kMegabyte, "MB");
  std::uint64_t seen = 0;
  for (const auto& target : targets_) {
    ESPALIER_CHECK(check_digest(*target, progress, seen));
    std::error_code error;
    fs::rename(target->part, target->path, error);
    if (error) {
      return work_error("{}: cannot be renamed: {}", target->part.string(), error.message());
    }
    fs::remove(target->journal, error);
  }
  return {};
}

Status Download::run(std::span<const Fetch> files, const fs::path& folder) {
  if (multi_ == nullptr) return work_error("curl could not start");
  ESPALIER_CHECK(open(files, folder));
  ESPALIER_CHECK(fetch_pieces());
  return check_and_name();
}

}  // namespace

Status download(std::span<const Fetch> files, const fs::path& folder, const std::string& token,
                const DownloadOptions& options) {
  return Download(token, options).run(files, folder);
}

}  // namespace espalier::hub
