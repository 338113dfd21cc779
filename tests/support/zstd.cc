#include "support/zstd.h"

#include <zstd.h>

#include <stdexcept>

#include "support/data.h"

namespace espalier::test {

std::string read_zstd_data(const std::string& name) {
  const std::string packed = read_data(name);
  const unsigned long long size = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR) {
    throw std::runtime_error("tests/data/" + name + " is no Zstandard frame of known size");
  }
  std::string bytes(size, '\0');
  const std::size_t written =
      ZSTD_decompress(bytes.data(), bytes.size(), packed.data(), packed.size());
  if (written != size) throw std::runtime_error("tests/data/" + name + " does not decompress");
  return bytes;
}

}  // namespace espalier::test
