#include "tests/support/cuda_host/faults.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <mutex>

#include "tests/support/cuda_host/block.h"
#include "tests/support/cuda_host/memory.h"

namespace keel::cuda_host {
namespace {

std::mutex mutex;
std::string first;

// The process is about to end: the little that is not safe in a signal handler is worth the sentence.
void explain(int signal, siginfo_t* info, void*) {
  const std::string sentence =
      fmt::format("cuda_host: {} accessed {}: {}\n", running_thread(), info->si_addr, describe_address(info->si_addr));
  [[maybe_unused]] auto written = write(STDERR_FILENO, sentence.data(), sentence.size());
  ::signal(signal, SIG_DFL);
}

}  // namespace

void record_fault(const std::string& sentence) {
  std::lock_guard lock(mutex);
  if (first.empty()) first = sentence;
}

void fault(const std::string& sentence) {
  record_fault(fmt::format("{} ({})", sentence, running_thread()));
  throw Stop{};
}

std::string recorded_fault() {
  std::lock_guard lock(mutex);
  return first;
}

void clear_fault() {
  std::lock_guard lock(mutex);
  first.clear();
}

std::string text(const std::source_location& place) {
  return fmt::format("{}:{}", place.file_name(), place.line());
}

std::string running_thread() {
  const Thread* thread = running();
  if (!thread) return "the host";
  return fmt::format("thread ({}, {}, {}) of block ({}, {}, {})", thread->index.x, thread->index.y, thread->index.z,
                     thread->block_index.x, thread->block_index.y, thread->block_index.z);
}

void explain_segmentation_faults() {
  struct sigaction action {};
  action.sa_sigaction = explain;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace keel::cuda_host
