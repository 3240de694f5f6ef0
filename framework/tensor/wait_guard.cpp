#include "framework/tensor/wait_guard.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace keel {
namespace {

thread_local std::vector<WaitGuard*> guards;
std::atomic<bool> left_running = false;

}  // namespace

WaitGuard::WaitGuard() {
  guards.push_back(this);
}

WaitGuard::~WaitGuard() {
  std::erase(guards, this);
}

bool WaitGuard::any() {
  return !guards.empty();
}

void WaitGuard::look_all() {
  for (WaitGuard* guard : guards) guard->look();
}

void WaitGuard::unwind_all() noexcept {
  for (WaitGuard* guard : guards) guard->unwind();
}

bool WaitGuard::all_at_rest() {
  return std::all_of(guards.begin(), guards.end(), [](WaitGuard* guard) { return guard->at_rest(); });
}

bool WaitGuard::gpu_left_running() {
  return left_running;
}

void WaitGuard::leave_gpu_running() noexcept {
  left_running = true;
}

}  // namespace keel
