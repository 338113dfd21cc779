// Writing results to standard output.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/result.h"

namespace espalier::app {

// Writes `text` out at once. A full disk or a closed pipe is an error, not a crash.
[[nodiscard]] inline Status write_stdout(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) {
    return work_error("cannot write to standard output: {}", std::strerror(errno));
  }
  return {};
}

}  // namespace espalier::app
