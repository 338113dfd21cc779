// How fast this machine can read memory: the floor under everything that streams weights.
#pragma once

#include <cstddef>

#include "base/bytes.h"
#include "base/thread_pool.h"

namespace espalier::measure {

// Bytes a second at which the pool's threads read `data` together: the best of several ways of
// reading, because one sequential stream a thread reaches less than half of what four streams or a
// prefetch do. Each way is tried `repeats` times.
[[nodiscard]] double read_bandwidth(ThreadPool& pool, Bytes data, int repeats = 5);

}  // namespace espalier::measure
