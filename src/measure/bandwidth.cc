#include "measure/bandwidth.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/timer.h"

namespace espalier::measure {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kWords = kLine / sizeof(std::uint64_t);

// Reads kStreams equal parts of `data` side by side, asking for memory `ahead` bytes further on.
template <std::size_t kStreams>
std::uint64_t read_streams(Bytes data, std::size_t ahead) {
  const std::size_t part = data.size() / kStreams / kLine * kLine;
  std::uint64_t sums[kStreams][kWords] = {};
  for (std::size_t at = 0; at < part; at += kLine) {
    for (std::size_t s = 0; s < kStreams; ++s) {
      const std::byte* from = data.data() + s * part + at;
      if (ahead != 0) {
        __builtin_prefetch(data.data() + std::min(s * part + at + ahead, data.size() - 1));
      }
      std::uint64_t line[kWords];
      std::memcpy(line, from, kLine);
      for (std::size_t w = 0; w < kWords; ++w) sums[s][w] ^= line[w];
    }
  }
  std::uint64_t all = 0;
  for (const auto& stream : sums) {
    for (const std::uint64_t word : stream) all ^= word;
  }
  return all;
}

struct Pattern {
  std::uint64_t (*read)(Bytes data, std::size_t ahead);
  std::size_t ahead;
};

constexpr Pattern kPatterns[] = {
    {read_streams<1>, 0}, {read_streams<1>, 1024}, {read_streams<1>, 2048},
    {read_streams<4>, 0}, {read_streams<4>, 1024}, {read_streams<16>, 0},
};

}  // namespace

double read_bandwidth(ThreadPool& pool, Bytes data, int repeats) {
  double best = 0;
  const std::size_t part = data.size() / pool.threads();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (const Pattern& pattern : kPatterns) {
      const Timer timer;
      pool.parallel_for(pool.threads(), [&](std::size_t begin, std::size_t end, std::size_t) {
        for (std::size_t p = begin; p < end; ++p) {
          volatile std::uint64_t sum = pattern.read(data.subspan(p * part, part), pattern.ahead);
          static_cast<void>(sum);
        }
      });
      best = std::max(best, static_cast<double>(part * pool.threads()) / timer.seconds());
    }
  }
  return best;
}

}  // namespace espalier::measure
