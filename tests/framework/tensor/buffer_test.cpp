#include "framework/tensor/buffer.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

// What a step might take: nested scopes, odd sizes.
void take_some(Arena& arena) {
  arena.take({3}, DType::f32);
  {
    auto scope = arena.scope();
    arena.take({100}, DType::bf16);
  }
  auto scope = arena.scope();
  arena.take({5, 5}, DType::f32);
}

TEST(Arena, MetaPlanIsWhatARealArenaNeeds) {
  Arena plan;
  take_some(plan);
  EXPECT_EQ(plan.peak_bytes(), 64 + 256);
  Arena real(Device{}, plan.peak_bytes());
  take_some(real);
  EXPECT_EQ(real.peak_bytes(), plan.peak_bytes());
  EXPECT_EQ(real.used_bytes(), 64);
  EXPECT_THROW(real.take({1000}, DType::f32), Error);
}

TEST(Arena, RowsThatWouldMeetInACacheArePadded) {
  Arena arena(Device{}, 1 << 20);
  EXPECT_EQ(arena.take_rows(3, 1024, DType::f32).stride(0), 1024 + 16);
  EXPECT_EQ(arena.take_rows(3, 2048, DType::bf16).stride(0), 2048 + 32);
  EXPECT_EQ(arena.take_rows(3, 1024, DType::bf16).stride(0), 1024);
  EXPECT_EQ(arena.take_rows(3, 1000, DType::f32).stride(0), 1000);
  EXPECT_EQ(arena.take_rows(3, 1024, DType::f32).shape(), (Shape{3, 1024}));
}

TEST(Arena, ScopesReuseMemory) {
  Arena arena(Device{}, 1024);
  void *first, *second;
  {
    auto scope = arena.scope();
    first = arena.take({8}, DType::f32).data();
  }
  second = arena.take({8}, DType::f32).data();
  EXPECT_EQ(first, second);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.take({1}, DType::bf16).data()) % 64, 0u);
}

TEST(Buffer, IsZeroFilledAndRefusesTheImpossible) {
  Buffer buffer(Device{}, 1000);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(buffer.data()[i], std::byte(0));
  EXPECT_THROW(buffer.tensor(999, {1}, DType::f32), Error);
  EXPECT_THROW(Buffer(Device{}, int64_t(1) << 60), Error);
  EXPECT_EQ(Buffer(Device{DeviceKind::meta}, int64_t(1) << 60).data(), nullptr);
}

}  // namespace
}  // namespace keel
