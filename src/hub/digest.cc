#include "hub/digest.h"

#include <openssl/evp.h>

#include <array>
#include <cstdio>
#include <memory>
#include <vector>

namespace espalier::hub {

Result<std::string> file_digest(const std::filesystem::path& path, DigestKind kind,
                                const std::function<bool(std::uint64_t)>& seen) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (file == nullptr || error) return work_error("{}: cannot be read", path.string());

  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  const EVP_MD* algorithm = kind == DigestKind::kSha256 ? EVP_sha256() : EVP_sha1();
  bool ok = context != nullptr && EVP_DigestInit_ex(context.get(), algorithm, nullptr) == 1;
  if (kind == DigestKind::kGitBlob) {
    const std::string head = fmt::format("blob {}", size);
    ok = ok && EVP_DigestUpdate(context.get(), head.c_str(), head.size() + 1) == 1;
  }
  std::vector<unsigned char> buffer(1 << 20);
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    ok = ok && EVP_DigestUpdate(context.get(), buffer.data(), count) == 1;
    if (!seen(count)) return work_error("{}: its check was interrupted", path.string());
  }
  if (std::ferror(file.get()) != 0) return work_error("{}: cannot be read", path.string());

  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned length = 0;
  ok = ok && EVP_DigestFinal_ex(context.get(), digest.data(), &length) == 1;
  if (!ok) return work_error("{}: the checksum could not be computed", path.string());
  std::string text;
  for (unsigned i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace espalier::hub
