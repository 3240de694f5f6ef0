#include "tests/support/cuda_host/block.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/support/cuda_host/faults.h"

namespace keel::cuda_host {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kPage = 4096;
constexpr size_t kSharedAlignment = 128;
constexpr size_t kMostSharedBytes = (256 << 10);

enum class State { ready, at_barrier, in_warp, ended };

// Where a thread waits.
struct Wait {
  std::source_location place;
  unsigned mask = 0;
  WarpOperation operation = nullptr;
  void* argument = nullptr;
};

bool same(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

class Block;

// A fiber that runs one thread after another, block after block.
struct Worker {
  explicit Worker(Block& block);
  void resume() { fiber = std::move(fiber).resume(); }
  void pause() { scheduler = std::move(scheduler).resume(); }

  boost::context::fiber fiber, scheduler;
  State state = State::ended;
  Thread thread;
  Wait wait;
};

// The workers and the shared memory of one OS thread.
class Block {
 public:
  Block();
  ~Block() { munmap(shared_, kMostSharedBytes + kPage); }
  void run(const Kernel& kernel, uint3 block_index, uint64_t seed, int fill);
  void barrier(const std::source_location& place);
  void collective(const Wait& wait);
  bool stopping() const { return stopping_; }

  Worker* current = nullptr;
  const Kernel* kernel = nullptr;

 private:
  void begin(uint3 block_index, int fill);
  void schedule(uint64_t seed);
  bool run_warp(const std::vector<unsigned>& lanes, unsigned warp);
  void release_barrier();
  void explain_deadlock();
  void stop();
  size_t count(State state) const;

  std::byte* shared_;
  std::vector<std::unique_ptr<Worker>> workers_;
  size_t threads_ = 0;
  bool stopping_ = false;
};

Block& this_block() {
  thread_local Block block;
  return block;
}

Worker::Worker(Block& block)
    : fiber(std::allocator_arg, boost::context::protected_fixedsize_stack(kStackBytes),
            [this, &block](boost::context::fiber&& from) {
              scheduler = std::move(from);
              for (;;) {
                try {
                  if (!block.stopping()) block.kernel->body();
                } catch (const Stop&) {
                }
                state = State::ended;
                pause();
              }
              return std::move(scheduler);
            }) {}

Block::Block() {
  void* mapping = mmap(nullptr, kMostSharedBytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  shared_ = static_cast<std::byte*>(mapping);
  mprotect(shared_, kMostSharedBytes, PROT_READ | PROT_WRITE);
}

size_t Block::count(State state) const {
  return size_t(std::count_if(workers_.begin(), workers_.begin() + std::ptrdiff_t(threads_),
                              [&](const auto& worker) { return worker->state == state; }));
}

void Block::begin(uint3 block_index, int fill) {
  const dim3 size = kernel->block;
  threads_ = size_t(size.x) * size.y * size.z;
  while (workers_.size() < threads_) workers_.push_back(std::make_unique<Worker>(*this));
  // Shared memory ends at the inaccessible page. NaN in the first run, a small number in the second.
  const size_t bytes = (kernel->shared_bytes + 15) / 16 * 16;
  std::byte* shared = shared_ + kMostSharedBytes - (bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  if (bytes % kSharedAlignment != 0) shared = shared_ + kMostSharedBytes - bytes;
  std::memset(shared, fill == 0 ? 0xff : 0x3c, bytes);
  for (unsigned i = 0; i < threads_; ++i) {
    Worker& worker = *workers_[i];
    worker.state = State::ready;
    worker.thread = {
        {i % size.x, i / size.x % size.y, i / size.x / size.y}, block_index, size, kernel->grid, i, shared, {}};
  }
}

void Block::run(const Kernel& of, uint3 block_index, uint64_t seed, int fill) {
  kernel = &of;
  stopping_ = false;
  begin(block_index, fill);
  schedule(seed);
  kernel = nullptr;
}

// Resumes the lanes of one warp until none can go on; false where none could.
bool Block::run_warp(const std::vector<unsigned>& lanes, unsigned warp) {
  bool any = false;
  for (bool again = true; again;) {
    again = false;
    for (unsigned lane : lanes) {
      const size_t number = warp * kWarp + lane;
      if (number >= threads_ || workers_[number]->state != State::ready) continue;
      any = again = true;
      current = workers_[number].get();
      current->resume();
      current = nullptr;
    }
  }
  return any;
}

// Each warp runs as far as it can before the next begins, in a new order after every barrier: what one may do too early
// happens too early.
void Block::schedule(uint64_t seed) {
  std::vector<unsigned> lanes(kWarp), warps((threads_ + kWarp - 1) / kWarp);
  std::iota(lanes.begin(), lanes.end(), 0u);
  std::iota(warps.begin(), warps.end(), 0u);
  auto shuffle = [&seed](std::vector<unsigned>& order) {
    for (size_t i = order.size(); i > 1; --i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i - 1], order[(seed >> 33) % i]);
    }
  };
  while (count(State::ended) < threads_) {
    shuffle(warps);
    shuffle(lanes);
    bool any = false;
    for (unsigned warp : warps) any |= run_warp(lanes, warp);
    if (!recorded_fault().empty()) return stop();
    if (count(State::at_barrier) == threads_) {
      release_barrier();
    } else if (!any) {
      explain_deadlock();
      return stop();
    }
  }
}

void Block::release_barrier() {
  const std::source_location& place = workers_[0]->wait.place;
  for (size_t i = 0; i < threads_; ++i) {
    const std::source_location& other = workers_[i]->wait.place;
    if (!same(place, other))
      record_fault(
          fmt::format("barrier divergence: thread 0 waits at {}, thread {} at {}", text(place), i, text(other)));
    workers_[i]->state = State::ready;
  }
}

// Nobody can go on.
void Block::explain_deadlock() {
  auto describe = [&](State state) -> std::string {
    for (size_t i = 0; i < threads_; ++i)
      if (workers_[i]->state == state)
        return state == State::ended ? fmt::format("thread {} has ended", i)
                                     : fmt::format("thread {} waits at {}", i, text(workers_[i]->wait.place));
    return "";
  };
  const char* kind = count(State::in_warp) > 0 ? "warp divergence" : "barrier divergence";
  std::string sentence = fmt::format("{}: {} threads wait for a barrier, {} for lanes of their warp, {} have ended",
                                     kind, count(State::at_barrier), count(State::in_warp), count(State::ended));
  for (State state : {State::at_barrier, State::in_warp, State::ended}) {
    const std::string one = describe(state);
    if (!one.empty()) sentence += "; " + one;
  }
  record_fault(sentence);
}

// Threads that wait go on into a Stop, threads that have not begun never do.
void Block::stop() {
  stopping_ = true;
  for (size_t i = 0; i < threads_; ++i) {
    Worker& worker = *workers_[i];
    while (worker.state != State::ended) {
      current = &worker;
      worker.resume();
      current = nullptr;
    }
  }
}

void Block::barrier(const std::source_location& place) {
  if (stopping_) throw Stop{};
  Worker& worker = *current;
  worker.wait = {place};
  worker.state = State::at_barrier;
  worker.pause();
  if (stopping_) throw Stop{};
}

void Block::collective(const Wait& wait) {
  if (stopping_) throw Stop{};
  Worker& worker = *current;
  const unsigned lane = worker.thread.lane(), first = worker.thread.number - lane;
  if (!(wait.mask >> lane & 1))
    fault(fmt::format("warp divergence: lane {} is not in its mask {:#x} at {}", lane, wait.mask, text(wait.place)));
  worker.wait = wait;
  worker.state = State::in_warp;
  void* arguments[kWarp] = {};
  bool all_here = true;
  for (unsigned i = 0; i < kWarp; ++i) {
    if (!(wait.mask >> i & 1)) continue;
    if (first + i >= threads_)
      fault(fmt::format("warp divergence: the block has no lane {} for the mask {:#x} at {}", i, wait.mask,
                        text(wait.place)));
    const Worker& other = *workers_[first + i];
    if (other.state == State::ended)
      fault(fmt::format("warp divergence: lane {} of the mask {:#x} has ended, at {}", i, wait.mask, text(wait.place)));
    // A lane that waits with others, not with this one, will come here later.
    if (other.state != State::in_warp || !(other.wait.mask >> lane & 1)) {
      all_here = false;
      continue;
    }
    if (other.wait.mask != wait.mask || other.wait.operation != wait.operation || !same(other.wait.place, wait.place))
      fault(fmt::format("warp divergence: lane {} at {} (mask {:#x}), lane {} at {} (mask {:#x})", lane,
                        text(wait.place), wait.mask, i, text(other.wait.place), other.wait.mask));
    arguments[i] = other.wait.argument;
  }
  if (!all_here) {
    worker.pause();
    if (stopping_) throw Stop{};
    return;
  }
  wait.operation(arguments, wait.mask);
  for (unsigned i = 0; i < kWarp; ++i)
    if (wait.mask >> i & 1) workers_[first + i]->state = State::ready;
}

}  // namespace

Thread* running() {
  Worker* worker = this_block().current;
  return worker ? &worker->thread : nullptr;
}

Thread& this_thread() {
  Thread* thread = running();
  if (!thread) fault("device code was called outside a kernel");
  return *thread;
}

void block_barrier(const std::source_location& place) {
  this_thread();
  this_block().barrier(place);
}

void warp_collective(unsigned mask, WarpOperation operation, void* argument, const std::source_location& place) {
  this_thread();
  this_block().collective({place, mask, operation, argument});
}

void run_block(const Kernel& kernel, uint3 block_index, uint64_t seed, int run) {
  this_block().run(kernel, block_index, seed, run);
}

}  // namespace keel::cuda_host
