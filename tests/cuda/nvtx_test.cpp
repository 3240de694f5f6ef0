// Spans reach NVIDIA's profilers: base/nvtx.h, seen by one that only counts.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "framework/base/trace.h"

namespace keel {
namespace {

TEST(Nvtx, SpansAreNestedRanges) {
  ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", NVTX_COUNTER, 1), 0);  // before the first range
  {
    const Span step("step");
    for (int layer = 0; layer < 3; ++layer) const Span block("block", layer);
  }
  void* counter = dlopen(NVTX_COUNTER, RTLD_NOW);
  ASSERT_NE(counter, nullptr) << dlerror();
  auto value = [&](const char* name) { return reinterpret_cast<int (*)()>(dlsym(counter, name))(); };
  EXPECT_EQ(value("nvtx_blocks"), 3);
  EXPECT_EQ(value("nvtx_deepest"), 2);
  EXPECT_EQ(value("nvtx_depth"), 0);
}

}  // namespace
}  // namespace keel
