#include <nvtx3/nvToolsExt.h>

#include "framework/base/nvtx.h"

namespace keel::nvtx {

void push(const char* name) noexcept {
  nvtxRangePushA(name);
}

void pop() noexcept {
  nvtxRangePop();
}

}  // namespace keel::nvtx
