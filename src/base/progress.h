// Progress of long work on standard error: a bar on a terminal, a plain line now and then
// otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "base/timer.h"

namespace espalier {

class Progress {
 public:
  // `what` is the work ("computing logits"), `total` its size in `unit`s ("positions"). Work that
  // ends within a second shows nothing.
  Progress(std::string what, std::uint64_t total, std::string unit);
  ~Progress();  // leaves a clean line behind
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total are done.
  void update(std::uint64_t done);

 private:
  std::string what_, unit_;
  std::uint64_t total_;
  bool terminal_;
  bool drawn_ = false;
  double last_ = 0;  // seconds at the last output
  Timer timer_;
};

}  // namespace espalier
