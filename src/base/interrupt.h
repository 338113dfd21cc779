// Ctrl+C as a flag that long work looks at.
#pragma once

#include <atomic>

namespace espalier {

// True once the user pressed Ctrl+C (SIGINT) or the process was asked to end (SIGTERM). The first
// call installs the handlers; a second Ctrl+C ends the process at once.
[[nodiscard]] const std::atomic<bool>& interrupted();

// The same without installing anything: false where no part of the program looks for Ctrl+C.
[[nodiscard]] bool interrupt_pending();

// Whether the process was asked to end, and not only to stop what it does.
[[nodiscard]] bool asked_to_end();

// Makes interrupted() false again, for a program that goes on after a Ctrl+C.
void clear_interrupt();

}  // namespace espalier
