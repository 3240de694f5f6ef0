#include "framework/tensor/wait_guard.h"

#include <vector>

namespace keel {
namespace {

thread_local std::vector<WaitGuard*> guards;

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

}  // namespace keel
