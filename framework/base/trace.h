// Where a process's time goes, on request: spans of its threads for Chrome's trace viewer (ui.perfetto.dev,
// chrome://tracing). In builds with CUDA each span is an NVTX range as well, which NVIDIA's profilers show beside what
// the GPU does.
//
//   const Span span("attention", layer);  // until the scope ends
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace keel {

// Costs two loads where nothing is recorded (and with CUDA two calls into NVTX, which do nothing without a profiler);
// allocates nothing.
class Span {
 public:
  // `name` is a literal; `index` tells its like apart (a layer, a step), none where it is negative.
  explicit Span(const char* name, int64_t index = -1) noexcept;
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const char* name_;
  int64_t index_;
  int64_t begin_ns_;
};

namespace trace {

// What the thread that calls is shown as; `name` is a literal. Threads of one name share a row.
void name_thread(const char* name);

// Keeps the spans of all threads that end from now on, `capacity` of them; what comes then is counted only. Starting
// again forgets those before.
void start(size_t capacity = size_t(1) << 18);

// Ends it: what was kept, as Chrome's trace JSON, `rank` being the process shown. Times are microseconds of the
// system's clock, so traces of several ranks lie beside one another as far as their hosts' clocks agree.
std::string stop(int rank);

}  // namespace trace
}  // namespace keel
