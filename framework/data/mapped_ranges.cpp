#include "framework/data/mapped_ranges.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <string_view>
#include <utility>

#include "framework/base/error.h"

namespace keel::data {

struct MappedRange {
  static constexpr size_t kLongestPath = 512;
  std::atomic<uintptr_t> begin = 0;  // 0: free; written last
  size_t size_bytes = 0;
  std::array<char, kLongestPath> path;
  size_t path_size = 0;
  MappedRange* next_free = nullptr;
};

namespace {

struct Block {
  std::array<MappedRange, 256> ranges;
  Block* older = nullptr;
};

// A signal handler may neither wait for a lock nor take memory: writers have the lock, it reads. Blocks stay for ever.
std::atomic<Block*> newest = nullptr;
MappedRange* first_free = nullptr;
std::mutex writing;
struct sigaction before;
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<Block*>::is_always_lock_free);

iovec piece(const char* text, size_t size) {
  return {const_cast<char*>(text), size};
}

const MappedRange* range_of(uintptr_t address) {
  for (const Block* block = newest.load(std::memory_order_acquire); block != nullptr; block = block->older)
    for (const MappedRange& range : block->ranges) {
      const uintptr_t begin = range.begin.load(std::memory_order_acquire);
      if (begin != 0 && address >= begin && address - begin < range.size_bytes) return &range;
    }
  return nullptr;
}

void end_at_bus_error(int, siginfo_t* info, void*) {
  constexpr std::string_view kFront = "keel: error: ";
  constexpr std::string_view kBack =
      ": it was cut short, or its disk failed, while it was read; put it back and start the same command again\n";
  if (const MappedRange* range = range_of(uintptr_t(info->si_addr))) {
    const iovec line[] = {piece(kFront.data(), kFront.size()), piece(range->path.data(), range->path_size),
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

void add_block() {
  auto* block = new Block;
  for (MappedRange& range : block->ranges) range.next_free = std::exchange(first_free, &range);
  block->older = newest.load(std::memory_order_relaxed);
  newest.store(block, std::memory_order_release);
}

}  // namespace

MappedRange* remember_mapping(const char* begin, int64_t size_bytes, const std::string& path) {
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  const std::lock_guard lock(writing);
  if (first_free == nullptr) add_block();
  MappedRange* range = std::exchange(first_free, first_free->next_free);
  range->size_bytes = size_t(size_bytes);
  range->path_size = path.copy(range->path.data(), range->path.size());
  range->begin.store(uintptr_t(begin), std::memory_order_release);
  return range;
}

void forget_mapping(MappedRange* range) {
  const std::lock_guard lock(writing);
  range->begin.store(0, std::memory_order_release);
  range->next_free = std::exchange(first_free, range);
}

}  // namespace keel::data
