#include "framework/io/telemetry.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <future>
#include <random>

#include "framework/io/hdf5.h"
#include "tests/support/disk.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::io {
namespace {

using namespace keel::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Content {
  std::vector<int64_t> steps;
  std::vector<float> values;
  std::vector<uint64_t> dims;
};

Content read(IoThread& io, const std::string& path, const std::string& name) {
  return io.run([&](IoContext& c) {
    File file = File::open(c, path, Access::read);
    Dataset values = file.open_dataset(name + "/value");
    return Content{file.open_dataset(name + "/step").read_all<int64_t>(), values.read_all<float>(), values.dims()};
  });
}

std::vector<float> row(int64_t step, size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = float(step) + 0.001f * float(i);
  return values;
}

TEST(Telemetry, RowsOfSeveralShapesAtTheirOwnSteps) {
  TemporaryFolder scratch;
  IoThread io;
  {
    Telemetry telemetry(io, scratch / "t.h5", 0, 4);
    telemetry.declare("largest_logit", {2, 3});
    telemetry.declare("entropy", {2});
    telemetry.declare("never", {5});
    for (int64_t step = 1; step <= 10; ++step) {
      telemetry.append("largest_logit", step, row(step, 6));
      if (step % 5 == 0) telemetry.append("entropy", step, row(step, 2));
    }
  }
  io.run([](IoContext&) {});
  io.check();
  Content logit = read(io, scratch / "t.h5", "largest_logit"), entropy = read(io, scratch / "t.h5", "entropy");
  EXPECT_EQ(logit.dims, (std::vector<uint64_t>{10, 2, 3}));
  for (int64_t step = 1; step <= 10; ++step) {
    EXPECT_EQ(logit.steps[step - 1], step);
    std::vector<float> stored(logit.values.begin() + (step - 1) * 6, logit.values.begin() + step * 6);
    EXPECT_EQ(stored, row(step, 6));
  }
  EXPECT_THAT(entropy.steps, ElementsAre(5, 10));
}

TEST(Telemetry, WholeNumbersStayExact) {
  TemporaryFolder scratch;
  IoThread io;
  const std::vector<int64_t> large = {-1, (int64_t(1) << 53) + 1};
  {
    Telemetry telemetry(io, scratch / "t.h5", 0, 2);
    telemetry.declare("place", {2});
    for (int64_t step = 1; step <= 5; ++step) telemetry.append("place", step, std::span(large));
  }
  Telemetry telemetry(io, scratch / "t.h5", 3);  // cut, as any other
  io.run([&](IoContext& c) {
    File file = File::open(c, scratch / "t.h5", Access::read);
    EXPECT_THAT(file.open_dataset("place/step").read_all<int64_t>(), ElementsAre(1, 2, 3));
    const std::vector<int64_t> values = file.open_dataset("place/value").read_all<int64_t>();
    EXPECT_EQ(std::vector<int64_t>(values.end() - 2, values.end()), large);
  });
}

TEST(Telemetry, TheFileIsWholeBetweenBlocks) {
  TemporaryFolder scratch;
  IoThread io;
  Telemetry telemetry(io, scratch / "t.h5", 0, 4);
  telemetry.declare("x", {1});
  for (int64_t step = 1; step <= 6; ++step) telemetry.append("x", step, row(step, 1));
  EXPECT_THAT(read(io, scratch / "t.h5", "x").steps, ElementsAre(1, 2, 3, 4));  // two rows wait
  telemetry.flush();
  EXPECT_THAT(read(io, scratch / "t.h5", "x").steps, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(Telemetry, GoingOnCutsLaterRows) {
  TemporaryFolder scratch;
  IoThread io;
  auto go_on = [&](int64_t from, int64_t to) {
    Telemetry telemetry(io, scratch / "t.h5", from, 4);
    telemetry.declare("x", {2});
    if (from > 0) {
      EXPECT_EQ(read(io, scratch / "t.h5", "x").dims, (std::vector<uint64_t>{uint64_t(from), 2}));
      EXPECT_THROW(telemetry.append("x", from, row(from, 2)), Error);
    }
    for (int64_t step = from + 1; step <= to; ++step) telemetry.append("x", step, row(step + 100 * from, 2));
  };
  go_on(0, 10);
  go_on(7, 9);
  EXPECT_THAT(read(io, scratch / "t.h5", "x").steps, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
  go_on(2, 3);
  const Content content = read(io, scratch / "t.h5", "x");
  EXPECT_THAT(content.steps, ElementsAre(1, 2, 3));
  EXPECT_EQ(content.values[4], row(203, 2)[0]);
  const Telemetry anew(io, scratch / "t.h5", 0);
  EXPECT_TRUE(read(io, scratch / "t.h5", "x").steps.empty());
}

// CASES R77: a save may be at work for long, and a step that brings a new array must not wait for it.
TEST(Telemetry, NewArraysDoNotWaitForOtherIo) {
  TemporaryFolder scratch;
  IoThread io;
  {
    Telemetry first(io, scratch / "t.h5", 0, 4);
    first.declare("known", {2});
    first.append("known", 1, row(1, 2));
  }
  Telemetry telemetry(io, scratch / "t.h5", 1, 100);
  std::promise<void> open;
  io.submit([gate = open.get_future().share()](IoContext&) { gate.wait(); }, 0);
  auto step = std::async(std::launch::async, [&] {
    telemetry.declare("known", {2});
    telemetry.declare("new", {3});
    telemetry.append("new", 2, row(2, 3));
  });
  EXPECT_EQ(step.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  open.set_value();
  step.get();
  telemetry.flush();
  EXPECT_THAT(read(io, scratch / "t.h5", "new").steps, ElementsAre(2));
}

TEST(Telemetry, WrongUseIsRefused) {
  TemporaryFolder scratch;
  IoThread io;
  Telemetry telemetry(io, scratch / "t.h5", 0, 1);
  telemetry.declare("x", {2, 2});
  EXPECT_THAT(message_of([&] { telemetry.append("y", 1, row(1, 4)); }), HasSubstr("'y' is not declared"));
  EXPECT_THAT(message_of([&] { telemetry.append("x", 1, row(1, 3)); }), HasSubstr("3 values for an array x of 4"));
  telemetry.append("x", 1, row(1, 4));
  EXPECT_THAT(message_of([&] { telemetry.append("x", 1, row(1, 4)); }), HasSubstr("step 1 of x comes after step 1"));
  EXPECT_THROW(telemetry.declare("a/b", {1}), Error);
  EXPECT_THROW(telemetry.declare("x", {1}), Error);
  Telemetry other(io, scratch / "t.h5", 1);
  EXPECT_THAT(message_of([&] { other.declare("x", {4}); }), HasSubstr("x has rows of [2, 2], but this run makes [4]"));
}

TEST(Telemetry, ABrokenFileIsPutAside) {
  TemporaryFolder scratch;
  IoThread io;
  const std::string path = scratch / "t.h5";
  auto rows = [&](int64_t last, int64_t step) {
    Telemetry telemetry(io, path, last, 1);
    telemetry.declare("x", {1});
    telemetry.append("x", step, row(step, 1));
    telemetry.flush();
    io.run([](IoContext&) {});
  };
  rows(0, 1);
  std::string whole = read_bytes(path);
  write_bytes(path, whole.substr(0, whole.size() / 2));
  rows(1, 2);
  EXPECT_THAT(read(io, path, "x").steps, ElementsAre(2));
  EXPECT_EQ(read_bytes(path + ".broken-1").size(), whole.size() / 2);
  write_bytes(path, "not this kind of file");
  rows(2, 3);
  EXPECT_EQ(read_bytes(path + ".broken-2"), "not this kind of file");
  io.run([&](IoContext& c) {  // HDF5, but another's
    File file = File::create(c, path);
    file.write_scalar<float>("weights", 1);
    file.close();
  });
  rows(3, 4);
  EXPECT_TRUE(std::filesystem::exists(path + ".broken-3"));
  EXPECT_THAT(read(io, path, "x").steps, ElementsAre(4));
}

TEST(Telemetry, AFullDiskSurfacesAtCheck) {
  TemporaryFolder scratch;
  SmallDisk disk(scratch / "disk", "128k");
  if (!disk.ok()) GTEST_SKIP() << "cannot mount a small file system here";
  IoThread io;
  Telemetry telemetry(io, scratch / "disk/t.h5", 0, 1);
  telemetry.declare("x", {1000});
  std::string message;
  for (int64_t step = 1; message.empty() && step < 1000; ++step) {
    telemetry.append("x", step, row(step, 1000));
    io.run([](IoContext&) {});
    message = message_of([&] { io.check(); });
  }
  EXPECT_THAT(message, HasSubstr("t.h5"));
  EXPECT_THAT(message, HasSubstr("No space left on device"));
}

TEST(Telemetry, AReaderDoesNotStopTheRun) {
  TemporaryFolder scratch;
  const std::string path = scratch / "t.h5";
  IoThread io;
  Telemetry telemetry(io, path, 0, 1);
  telemetry.declare("x", {1});
  telemetry.append("x", 1, row(1, 1));
  io.run([](IoContext&) {});
  int reader = open(path.c_str(), O_RDONLY);
  ASSERT_EQ(flock(reader, LOCK_SH | LOCK_NB), 0);  // as HDF5 does when it reads
  telemetry.append("x", 2, row(2, 1));
  io.run([](IoContext&) {});
  EXPECT_NO_THROW(io.check());
  close(reader);
  EXPECT_THAT(read(io, path, "x").steps, ElementsAre(1, 2));
}

// Writes rows for ever; told where to start by what the parent found.
[[noreturn]] void write_for_ever(const std::string& path, int64_t last) {
  IoThread io;
  Telemetry telemetry(io, path, last, 1);
  telemetry.declare("x", {50});
  for (int64_t step = last + 1;; ++step) telemetry.append("x", step, row(step, 50));
}

TEST(Telemetry, AKilledRunLeavesAFileToContinueOrOneToPutAside) {
  TemporaryFolder scratch;
  const std::string path = scratch / "t.h5";
  std::mt19937 random(1);
  int continued = 0, set_aside = 0;
  for (int round = 0; round < 30; ++round) {
    pid_t child = fork();
    if (child == 0) write_for_ever(path, 5);
    usleep(20000 + random() % 20000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    IoThread io;
    const std::string aside = path + ".broken-" + std::to_string(set_aside + 1);
    Telemetry telemetry(io, path, 5, 1);
    telemetry.declare("x", {50});
    std::filesystem::exists(aside) ? ++set_aside : ++continued;
    telemetry.append("x", 6, row(6, 50));
    io.run([](IoContext&) {});
    io.check();
    Content content = read(io, path, "x");
    ASSERT_EQ(content.steps.back(), 6);
    ASSERT_EQ(std::vector<float>(content.values.end() - 50, content.values.end()), row(6, 50));
  }
  EXPECT_EQ(continued + set_aside, 30);
}

}  // namespace
}  // namespace keel::io
