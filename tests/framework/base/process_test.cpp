#include "framework/base/process.h"

#include <gtest/gtest.h>

#include <vector>

namespace keel {
namespace {

// Memory that was written to is held, and the peak keeps it when it is gone.
TEST(Process, HoldsWhatItWritesTo) {
  constexpr int64_t kTaken_bytes = int64_t(64) << 20;
  const int64_t before = resident_bytes();
  EXPECT_GT(before, 0);
  {
    const std::vector<char> taken(size_t(kTaken_bytes), 1);
    EXPECT_GT(resident_bytes(), before + kTaken_bytes / 2 + int64_t(taken[7]));
  }
  EXPECT_GT(peak_resident_bytes(), before + kTaken_bytes / 2);
  EXPECT_FALSE(host_name().empty());
}

}  // namespace
}  // namespace keel
