#include "base/interrupt.h"

#include <csignal>

namespace espalier {
namespace {

std::atomic<bool> flag = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only set such a flag");

void handle(int signal) {
  flag = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

const std::atomic<bool>& interrupted() {
  static const bool installed = [] {
    std::signal(SIGINT, handle);
    std::signal(SIGTERM, handle);
    return true;
  }();
  (void)installed;
  return flag;
}

}  // namespace espalier
