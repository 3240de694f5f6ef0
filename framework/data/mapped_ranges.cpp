#include "framework/data/mapped_ranges.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <string_view>

#include "framework/base/error.h"

namespace keel::data {
namespace {

constexpr size_t kMostRanges = 1024;  // files beyond these end the process without a name
constexpr size_t kLongestPath = 512;

struct Range {
  std::atomic<uintptr_t> begin = 0;  // 0: free; written last
  size_t size_bytes = 0;
  std::array<char, kLongestPath> path;
  size_t path_size = 0;
};

// A signal handler may neither wait for a lock nor take memory: writers have the lock, it reads.
std::array<Range, kMostRanges> ranges;
std::mutex writing;
struct sigaction before;
static_assert(std::atomic<uintptr_t>::is_always_lock_free);

iovec piece(const char* text, size_t size) {
  return {const_cast<char*>(text), size};
}

void end_at_bus_error(int, siginfo_t* info, void*) {
  constexpr std::string_view kFront = "keel: error: ";
  constexpr std::string_view kBack =
      ": it was cut short, or its disk failed, while it was read; put it back and start the same command again\n";
  const auto address = uintptr_t(info->si_addr);
  for (const Range& range : ranges) {
    const uintptr_t begin = range.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address - begin >= range.size_bytes) continue;
    const iovec line[] = {piece(kFront.data(), kFront.size()), piece(range.path.data(), range.path_size),
                          piece(kBack.data(), kBack.size())};
    [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, line, 3);
    ::_exit(int(ErrorKind::internal));
  }
  ::sigaction(SIGBUS, &before, nullptr);  // the same access then meets who was here before
}

void install_handler() {
  struct sigaction action {};
  action.sa_sigaction = end_at_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, &before);
}

}  // namespace

void remember_mapping(const char* begin, int64_t size_bytes, const std::string& path) {
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  const std::lock_guard lock(writing);
  const auto free = std::ranges::find_if(ranges, [](const Range& range) { return range.begin == 0; });
  if (free == ranges.end()) return;
  free->size_bytes = size_t(size_bytes);
  free->path_size = path.copy(free->path.data(), free->path.size());
  free->begin.store(uintptr_t(begin), std::memory_order_release);
}

void forget_mapping(const char* begin) {
  const std::lock_guard lock(writing);
  const auto range = std::ranges::find_if(ranges, [&](const Range& range) { return range.begin == uintptr_t(begin); });
  if (range != ranges.end()) range->begin.store(0, std::memory_order_release);
}

}  // namespace keel::data
