// What a loop on the thread pool costs beyond its work: waking the threads and waiting for them.
//
//   thread_pool_bench
//
// The argument is the number of threads. The product of a small layer takes 20 to 100 µs, so the
// cost should stay below 5.
#include <benchmark/benchmark.h>

#include "base/thread_pool.h"

namespace espalier {
namespace {

void empty_loop(benchmark::State& state) {
  ThreadPool pool(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    pool.parallel_for(pool.threads(), [](std::size_t begin, std::size_t, std::size_t) {
      benchmark::DoNotOptimize(begin);
    });
  }
}
BENCHMARK(empty_loop)->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

}  // namespace
}  // namespace espalier

BENCHMARK_MAIN();
