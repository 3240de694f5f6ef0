// Buffers, arenas, copies, streams and events on the device under test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/base/build_config.h"
#include "framework/ops/elementwise.h"
#include "framework/tensor/stream.h"
#include "tests/support/compare.h"

namespace keel {
namespace {

using namespace testing;

TEST(DeviceBuffer, IsZeroFilledAndRefusesTheImpossible) {
  for (int64_t n : {1, 7, 64, 1000}) {
    DeviceTensor tensor({n}, DType::bf16);
    EXPECT_EQ(tensor.tensor.device(), test_device());
    EXPECT_EQ(to_doubles(tensor), Values(size_t(n), 0.0));
  }
  EXPECT_THROW(Buffer(test_device(), int64_t(1) << 60), Error);
  EXPECT_EQ(Buffer(test_device(), 0).data(), nullptr);
}

TEST(DeviceBuffer, PinnedMemoryIsOrdinaryMemoryOfTheHost) {
  const Buffer pinned = Buffer::pinned(100, test_device());
  EXPECT_EQ(pinned.device(), Device{});
  EXPECT_EQ(pinned.data()[99], std::byte(0));
  pinned.data()[99] = std::byte(3);
  EXPECT_EQ(Buffer::pinned(0, test_device()).data(), nullptr);
}

TEST(DeviceArena, HandsOutAlignedMemoryInStackOrder) {
  Arena arena(test_device(), 4096);
  const Tensor first = arena.take({5}, DType::bf16);
  void* second = nullptr;
  {
    auto scope = arena.scope();
    second = arena.take({3, 3}, DType::f32).data();
  }
  EXPECT_EQ(arena.take({2}, DType::f32).data(), second);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 64, 0u);
  set_values(first, {1, 2, 3, 4, 5});
  EXPECT_EQ(to_doubles(first), (Values{1, 2, 3, 4, 5}));
  EXPECT_THROW(arena.take({4096}, DType::f32), Error);
}

TEST(Copy, GoesBothWaysAndAcrossStrides) {
  const Values values = random_values(60, 1);
  OwnedTensor here({6, 10}, DType::f32), back({6, 10}, DType::f32);
  set_values(here, values);
  DeviceTensor there({6, 10}, DType::f32), other({6, 14}, DType::f32);
  copy(there, here);
  copy(other.tensor.slice(1, 3, 13), there);
  copy(back, other.tensor.slice(1, 3, 13));
  EXPECT_TRUE(same_bits(back, here));
  EXPECT_EQ(to_doubles(other.tensor.slice(1, 0, 3)), Values(18, 0.0));
  EXPECT_EQ(to_doubles(other.tensor.slice(1, 13, 14)), Values(6, 0.0));
}

TEST(Copy, RefusesOtherShapesAndTypes) {
  DeviceTensor a({6}, DType::f32), b({7}, DType::f32), c({6}, DType::bf16);
  EXPECT_THROW(copy(a, b), Error);
  EXPECT_THROW(copy(a, c), Error);
  EXPECT_THROW(copy(a, OwnedTensor({6}, DType::f32, Device{DeviceKind::meta})), Error);
}

TEST(Streams, WorkOfOneStreamWaitsForAnEventOfAnother) {
  const Device device = test_device();
  Stream first(device), second(device);
  Event ready(device);
  EXPECT_TRUE(ready.done()) << "nothing was recorded";
  DeviceTensor x({1000}, DType::f32), y({1000}, DType::bf16);
  const Buffer pinned = Buffer::pinned(2000, test_device());
  const Tensor host = pinned.tensor(0, {1000}, DType::bf16);
  {
    StreamScope scope(first);
    EXPECT_EQ(Stream::current(device).native(), first.native());
    ops::fill(x, 1.5f);
    ready.record(first);
  }
  second.wait(ready);
  {
    StreamScope scope(second);
    ops::convert(y, x);
    copy_async(host, y, second);
  }
  EXPECT_EQ(Stream::current(device).native(), nullptr);
  second.synchronize();
  EXPECT_EQ(to_doubles(host), Values(1000, 1.5));
  EXPECT_TRUE(ready.done());
  ready.synchronize();
}

// On the stand-in, which goes on by one piece of work per question.
TEST(Streams, AGuardedHostIsSomeHundredsAheadAtMost) {
  if (!on_stand_in()) GTEST_SKIP() << "a real GPU may keep up";
  const DeviceTensor x({100}, DType::f32), y({100}, DType::f32);
  Stream stream(test_device());
  const StreamScope scope(stream);
  const auto ahead = [&](const auto& start) {
    stream.synchronize();
    const CountedWaits waits;
    for (int i = 0; i < 1000; ++i) start();
    return 1000 - waits.count;
  };
  EXPECT_LT(ahead([&] { ops::fill(x, 1); }), 400);
  EXPECT_LT(ahead([&] { zero(x); }), 400);
  EXPECT_LT(ahead([&] { copy_async(y, x, stream); }), 400);
}

// CUDA may wait for all of a GPU's work there, where no guard looks.
TEST(Streams, MemoryIsTakenAndGivenBackUnderGuards) {
  if (!on_stand_in()) GTEST_SKIP() << "a real GPU may keep up";
  const DeviceTensor x({100}, DType::f32);
  Stream stream(test_device());
  const StreamScope scope(stream);
  std::optional<Buffer> buffer;
  const auto looks = [&](const auto& work) {
    stream.synchronize();
    for (int i = 0; i < 10; ++i) ops::fill(x, 1);
    const CountedWaits waits;
    work();
    return waits.count;
  };
  EXPECT_GE(looks([&] { buffer.emplace(test_device(), 64); }), 9);
  EXPECT_GE(looks([&] { buffer.reset(); }), 9);
  EXPECT_GE(looks([&] { buffer = Buffer::pinned(64, test_device()); }), 9);
  EXPECT_GE(looks([&] { buffer.reset(); }), 9);
}

TEST(Devices, OneOpOnTwoIsRefused) {
  DeviceTensor x({8}, DType::f32);
  const OwnedTensor meta({8}, DType::f32, Device{DeviceKind::meta});
  EXPECT_THROW(ops::convert(x, meta), Error);
}

TEST(Devices, AnOldDriverIsNamedWithBothVersions) {
  if (!on_stand_in()) GTEST_SKIP() << "a real driver is what it is";
  EXPECT_EQ(cuda::old_driver(), "");
  setenv("KEEL_CUDA_HOST_DRIVER", "12020", 1);
  EXPECT_EQ(cuda::gpu_count(), 0);
  EXPECT_THAT(cuda::old_driver(), ::testing::StartsWith("the driver is made for CUDA 12.2, this build for 13."));
  setenv("KEEL_CUDA_HOST_DRIVER", "0", 1);
  EXPECT_EQ(cuda::old_driver(), "") << "no driver at all";
  unsetenv("KEEL_CUDA_HOST_DRIVER");
}

TEST(Devices, ABuildWithoutCudaSaysSo) {
  if (KEEL_HAS_CUDA) return;
  try {
    Buffer(Device{DeviceKind::cuda}, 16);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("this build has no CUDA: configure with the preset cuda"));
  }
}

}  // namespace
}  // namespace keel
