// Work on the device under test: on a GPU it is called twice and replayed from then on, elsewhere called every time.
#include "framework/tensor/graph.h"

#include <gtest/gtest.h>

#include "framework/ops/elementwise.h"
#include "tests/support/compare.h"

namespace keel {
namespace {

using namespace testing;

const bool kReplays = test_device().kind == DeviceKind::cuda;

TEST(Graphs, DoTheSameWorkAgainOnTheMemoryAsItIs) {
  const Device device = test_device();
  const Stream stream(device), side(device);
  const StreamScope scope(stream);
  Event forked(device), joined(device);
  const DeviceTensor x({100}, DType::f32), y({100}, DType::f32), half({100}, DType::bf16);
  Graph graph;
  int calls = 0;
  for (int run = 1; run <= 5; ++run) {
    ops::fill(x, float(run));
    graph.run(device, [&] {
      ++calls;
      ops::add(y, y, x);
      forked.record(stream);
      side.wait(forked);
      {
        const StreamScope other(side);
        ops::convert(half, y);
        joined.record(side);
      }
      stream.wait(joined);
      ops::scale(half, 2);
    });
  }
  stream.synchronize();
  EXPECT_EQ(calls, kReplays ? 2 : 5);
  EXPECT_EQ(to_doubles(y), Values(100, 1 + 2 + 3 + 4 + 5));
  EXPECT_EQ(to_doubles(half), Values(100, 2 * 15));
}

TEST(Graphs, AnErrorWhileRecordingLeavesTheStreamInOrder) {
  if (!kReplays) return;  // nothing is recorded
  const Device device = test_device();
  const Stream stream(device);
  const StreamScope scope(stream);
  const DeviceTensor x({8}, DType::f32);
  Graph graph;
  const auto allocating = [&] {
    const DeviceTensor more({8}, DType::f32);
    ops::fill(more, 1);
    ops::add(x, x, more);
  };
  graph.run(device, allocating);
  EXPECT_THROW(graph.run(device, allocating), Error);
  ops::scale(x, 3);
  stream.synchronize();
  EXPECT_EQ(to_doubles(x), Values(8, 3));
}

}  // namespace
}  // namespace keel
