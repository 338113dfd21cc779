#include "base/interrupt.h"

#include <csignal>

namespace espalier {
namespace {

std::atomic<bool> flag = false;
std::atomic<bool> end = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only set such a flag");

void handle(int signal) {
  flag = true;
  if (signal == SIGTERM) end = true;
}

// Resets itself with the first signal, so that a second one ends the process.
void install() {
  struct sigaction action = {};
  action.sa_handler = handle;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

const std::atomic<bool>& interrupted() {
  static const bool installed = [] {
    install();
    return true;
  }();
  (void)installed;
  return flag;
}

bool interrupt_pending() { return flag; }

bool asked_to_end() { return end; }

void clear_interrupt() {
  flag = false;
  install();
}

}  // namespace espalier
