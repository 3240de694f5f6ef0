#include "framework/io/io_thread.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "framework/base/error.h"

namespace keel::io {
namespace {

using std::chrono::milliseconds;

TEST(IoThread, RunsJobsInOrderOnOneOtherThread) {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  {
    IoThread io;
    for (int i = 0; i < 20; ++i)
      io.submit([&, i](IoContext&) { order.push_back(i), threads.push_back(std::this_thread::get_id()); });
    EXPECT_TRUE(io.run([](IoContext&) { return on_io_thread(); }));
    for (int i = 20; i < 40; ++i) io.submit([&, i](IoContext&) { order.push_back(i); });
  }  // the destructor waits
  ASSERT_EQ(order.size(), 40u);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(order[i], i);
  for (auto id : threads) EXPECT_EQ(id, threads[0]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
  EXPECT_FALSE(on_io_thread());
}

TEST(IoThread, RunReturnsTheValueAndTheVeryException) {
  IoThread io;
  EXPECT_EQ(*io.run([](IoContext&) { return std::make_unique<int>(7); }), 7);  // a move-only value
  try {
    io.run([](IoContext&) { throw input_error("step {}: lost", 3); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "step 3: lost");
    EXPECT_EQ(error.exit_code(), 2);
  }
  EXPECT_NO_THROW(io.check());  // the caller of run() has seen it
}

TEST(IoThread, TakesMoveOnlyJobsAndDestroysThemOnItsThread) {
  struct Witness {
    bool* there;
    ~Witness() { *there = on_io_thread(); }
  };
  bool destroyed_there = false;
  IoThread io;
  auto held = std::unique_ptr<Witness>(new Witness{&destroyed_there});
  io.submit([held = std::move(held)](IoContext&) {}).get();
  io.run([](IoContext&) {});
  EXPECT_TRUE(destroyed_there);
}

TEST(IoThread, BackgroundFailureSurfacesOnceAtCheck) {
  IoThread io;
  io.submit([](IoContext&) { throw input_error("first"); });
  io.submit([](IoContext&) { throw input_error("second"); });
  auto asked = io.submit([](IoContext&) { throw input_error("third"); });
  EXPECT_THROW(asked.get(), Error);
  io.run([](IoContext&) {});
  for (const char* text : {"first", "second"}) {
    try {
      io.check();
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), text);
    }
  }
  EXPECT_NO_THROW(io.check());
  EXPECT_EQ(io.run([](IoContext&) { return 1; }), 1);  // and the thread goes on
}

// Holds the I/O thread inside a job until released.
class Gate {
 public:
  explicit Gate(IoThread& io, uint64_t bytes = 0) {
    io.submit([future = std::make_shared<std::shared_future<void>>(open_.get_future().share())](
                  IoContext&) { future->wait(); },
              bytes);
  }
  void open() { open_.set_value(); }

 private:
  std::promise<void> open_;
};

// Whether a submit of `bytes` from another thread is still blocked after a while; then opens the gate.
bool blocks(IoThread& io, Gate& gate, uint64_t bytes) {
  std::promise<void> accepted;
  auto future = accepted.get_future();
  std::thread submitter([&] { io.submit([](IoContext&) {}, bytes), accepted.set_value(); });
  bool blocked = future.wait_for(milliseconds(100)) == std::future_status::timeout;
  gate.open();
  submitter.join();
  return blocked;
}

TEST(IoThread, BlocksByCount) {
  IoThread io({.jobs = 2, .bytes = 1000});
  Gate one(io);
  EXPECT_FALSE(blocks(io, one, 0));
  io.run([](IoContext&) {});
  Gate two(io);
  io.submit([](IoContext&) {});
  EXPECT_TRUE(blocks(io, two, 0));
}

TEST(IoThread, BlocksByBytesOfTheRunningJobToo) {
  IoThread io({.jobs = 10, .bytes = 1000});
  Gate one(io, 600);
  EXPECT_FALSE(blocks(io, one, 400));
  io.run([](IoContext&) {});
  Gate two(io, 600);
  EXPECT_TRUE(blocks(io, two, 401));
}

TEST(IoThread, AJobAboveTheLimitPassesAlone) {
  IoThread io({.jobs = 10, .bytes = 1000});
  EXPECT_EQ(io.submit([](IoContext&) { return 5; }, 1 << 20).get(), 5);
  io.run([](IoContext&) {});
  Gate gate(io, 1);
  EXPECT_TRUE(blocks(io, gate, 1 << 20));
  EXPECT_EQ(io.submit([](IoContext&) { return 6; }, UINT64_MAX).get(), 6);  // the sum must not wrap
}

TEST(IoThread, RefusesWhatCouldNeverEnd) {
  IoThread io;
  EXPECT_THROW(io.run([&](IoContext&) { io.run([](IoContext&) {}); }), Error);
  EXPECT_THROW(IoThread second, Error);  // HDF5 from two threads
  EXPECT_EQ(io.run([](IoContext&) { return 1; }), 1);
}

}  // namespace
}  // namespace keel::io
