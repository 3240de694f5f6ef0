#include "framework/base/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string_view>
#include <vector>

#include "framework/base/nvtx.h"

namespace keel {
namespace {

struct Kept {
  const char* name;
  int64_t index;
  int thread;
  int64_t begin_ns, end_ns;
};

struct Recorder {
  std::atomic<bool> on = false;
  std::mutex mutex;
  std::vector<Kept> spans;
  size_t capacity = 0, left_out = 0;
  std::vector<const char*> threads;  // their names
};

// Of the process, as its threads are; never destroyed, since they may outlive any other object.
Recorder& recorder() {
  static Recorder& recorder = *new Recorder;
  return recorder;
}

thread_local int this_thread = -1;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Span::Span(const char* name, int64_t index) noexcept
    : name_(name), index_(index), begin_ns_(recorder().on.load(std::memory_order_relaxed) ? now_ns() : 0) {
  nvtx::push(name);
}

Span::~Span() {
  nvtx::pop();
  if (begin_ns_ == 0 || !recorder().on.load(std::memory_order_relaxed)) return;
  if (this_thread < 0) trace::name_thread("other");
  const Kept span{name_, index_, this_thread, begin_ns_, now_ns()};
  std::lock_guard lock(recorder().mutex);
  if (recorder().spans.size() < recorder().capacity)
    recorder().spans.push_back(span);
  else
    ++recorder().left_out;
}

namespace trace {

void name_thread(const char* name) {
  std::lock_guard lock(recorder().mutex);
  std::vector<const char*>& threads = recorder().threads;
  this_thread = int(std::ranges::find(threads, std::string_view(name)) - threads.begin());
  if (this_thread == int(threads.size())) threads.push_back(name);
}

void start(size_t capacity) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  r.spans.clear();
  r.spans.reserve(capacity);
  r.capacity = capacity;
  r.left_out = 0;
  r.on = true;
}

std::string stop(int rank) {
  Recorder& r = recorder();
  r.on = false;
  std::lock_guard lock(r.mutex);
  std::string json =
      fmt::format("{{\"otherData\":{{\"rank\":{},\"spans_left_out\":{}}},\"traceEvents\":[\n", rank, r.left_out);
  auto out = std::back_inserter(json);
  fmt::format_to(out, R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"rank {0}"}}}})", rank);
  for (size_t thread = 0; thread < r.threads.size(); ++thread)
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                   rank, thread, r.threads[thread]);
  for (const Kept& span : r.spans) {
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f})",
                   span.name, rank, span.thread, double(span.begin_ns) / 1e3,
                   double(span.end_ns - span.begin_ns) / 1e3);
    if (span.index >= 0) fmt::format_to(out, R"(,"args":{{"index":{}}})", span.index);
    json += '}';
  }
  json += "\n]}\n";
  r.spans = {};
  return json;
}

}  // namespace trace
}  // namespace keel
