#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace espalier {
namespace {

constexpr double kFirstOutput = 1;       // seconds
constexpr double kTerminalPeriod = 0.1;  // seconds between redraws
constexpr double kPlainPeriod = 10;      // seconds between lines
constexpr std::uint64_t kBarWidth = 30;  // characters

}  // namespace

Progress::Progress(std::string what, std::uint64_t total, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (terminal_ && drawn_) fmt::print(stderr, "\r\x1b[K");
}

void Progress::update(std::uint64_t done) {
  if (!terminal_ && done >= total_) return;  // a line that says 100% only repeats the result
  const double now = timer_.seconds();
  const double period = !drawn_ ? kFirstOutput : terminal_ ? kTerminalPeriod : kPlainPeriod;
  if (now - last_ < period) return;
  last_ = now;
  drawn_ = true;
  const std::uint64_t shown = std::min(done, total_);
  const double left =
      shown == 0 ? 0 : now * static_cast<double>(total_ - shown) / static_cast<double>(shown);
  const std::string text =
      fmt::format("{}: {} of {} {}, {:.0f} s left", what_, shown, total_, unit_, left);
  if (terminal_) {
    const auto filled =
        static_cast<std::size_t>(total_ == 0 ? kBarWidth : kBarWidth * shown / total_);
    fmt::print(stderr, "\r[{:#<{}}{:.<{}}] {}\x1b[K", "", filled, "", kBarWidth - filled, text);
    std::fflush(stderr);
  } else {
    fmt::print(stderr, "{}\n", text);
  }
}

}  // namespace espalier
