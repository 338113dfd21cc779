// Ctrl+C as a flag that long work looks at.
#pragma once

#include <atomic>

namespace espalier {

// True once the user pressed Ctrl+C (SIGINT) or the process was asked to end (SIGTERM). The first
// call installs the handlers; a second Ctrl+C ends the process at once.
[[nodiscard]] const std::atomic<bool>& interrupted();

}  // namespace espalier
