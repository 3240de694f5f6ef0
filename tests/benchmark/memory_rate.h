// The yardstick of the passes that memory limits: a copy of as many bytes by as many threads, timed in turn with the
// pass. Times are processor seconds of the whole process and the best of the iterations, so that other programs on the
// machine disturb the ratio little.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "framework/ops/support/threads.h"
#include "framework/tensor/buffer.h"

namespace keel::benchmarking {

inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

template <class F>
double seconds_of(const F& f) {
  double start = processor_seconds();
  f();
  return processor_seconds() - start;
}

// Times `pass`, which must move `bytes` (read + written). Counters: ns of processor time per KB, and what share of a
// copy's rate that is.
template <class F>
void measure(benchmark::State& state, int64_t bytes, const F& pass) {
  const int64_t lines = bytes / 2 / 64;
  Buffer from({}, lines * 64), to({}, lines * 64);
  auto copy = [&] {
    ops::for_parts(lines, omp_get_max_threads(), [&](int, int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin * 64, from.data() + begin * 64, size_t(end - begin) * 64);
    });
  };
  pass();
  copy();
  double best_pass = 1e30, best_copy = 1e30;
  for (auto _ : state) {
    double taken = seconds_of(pass);
    best_pass = std::min(best_pass, taken);
    best_copy = std::min(best_copy, seconds_of(copy));
    state.SetIterationTime(taken);
  }
  state.counters["ns/KB"] = best_pass / double(bytes) * 1e12;
  state.counters["of_copy"] = best_copy / best_pass;
}

}  // namespace keel::benchmarking
