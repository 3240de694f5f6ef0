#include "framework/io/jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <limits>
#include <thread>

#include "tests/support/disk.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::io {
namespace {

using namespace keel::testing;
using ::testing::HasSubstr;

TEST(JsonLines, OneLinePerWriteInTheOrderOfItsKeys) {
  TemporaryFolder scratch;
  JsonLinesWriter writer(scratch / "m.jsonl");
  writer.write({{"step", 1}, {"loss", 2.5}, {"a", "two\nlines"}});
  EXPECT_EQ(read_bytes(scratch / "m.jsonl"), "{\"step\":1,\"loss\":2.5,\"a\":\"two\\nlines\"}\n");  // at once
  JsonLinesWriter(scratch / "m.jsonl").write({{"step", 2}});
  auto lines = read_json_lines(scratch / "m.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["a"], "two\nlines");
  EXPECT_EQ(lines[1]["step"], 2);
}

TEST(JsonLines, NumbersSurviveNanAndInfinityIncluded) {
  TemporaryFolder scratch;
  const double infinity = std::numeric_limits<double>::infinity();
  Json row = {{"nan", std::nan("")}, {"more", {{"up", infinity}, {"down", {1.0, -infinity}}}},
              {"tiny", 5e-324},      {"float", double(0.1f)},
              {"large", INT64_MAX},  {"text", "nano"}};
  JsonLinesWriter(scratch / "m.jsonl").write(row);
  EXPECT_THAT(read_bytes(scratch / "m.jsonl"), HasSubstr(R"({"nan":"nan","more":{"up":"inf","down":[1.0,"-inf"]})"));
  Json back = read_json_lines(scratch / "m.jsonl")[0];
  EXPECT_TRUE(std::isnan(back["nan"].get<double>()));
  EXPECT_EQ(back["more"]["up"].get<double>(), infinity);
  EXPECT_EQ(back["more"]["down"][1].get<double>(), -infinity);
  EXPECT_EQ(back["tiny"].get<double>(), 5e-324);
  EXPECT_EQ(back["float"].get<float>(), 0.1f);
  EXPECT_EQ(back["large"].get<int64_t>(), INT64_MAX);
  EXPECT_EQ(back["text"], "nano");
}

TEST(JsonLines, BytesThatAreNoTextDoNotStopARun) {
  TemporaryFolder scratch;
  JsonLinesWriter(scratch / "m.jsonl").write({{"sample", "\xff\xfe ok"}});
  EXPECT_THAT(read_json_lines(scratch / "m.jsonl")[0]["sample"].get<std::string>(), HasSubstr(" ok"));
  EXPECT_THROW(JsonLinesWriter(scratch / "m.jsonl").write(3), Error);
}

TEST(JsonLines, ABrokenLastLineIsLeftOutAndThenCutOff) {
  TemporaryFolder scratch;
  for (const std::string& tail : {std::string("{\"step\":3,\"lo"), std::string("{"), std::string(70000, '\0')}) {
    write_bytes(scratch / "m.jsonl", "{\"step\":1}\n{\"step\":2}\n" + tail);
    EXPECT_EQ(read_json_lines(scratch / "m.jsonl").size(), 2u);
    JsonLinesWriter(scratch / "m.jsonl").write({{"step", 3}});
    EXPECT_EQ(read_bytes(scratch / "m.jsonl"), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  }
  write_bytes(scratch / "m.jsonl", "{\"step\":1}");  // whole, only its newline is missing
  EXPECT_EQ(read_json_lines(scratch / "m.jsonl").size(), 1u);
  JsonLinesWriter(scratch / "m.jsonl").write({{"step", 2}});
  EXPECT_EQ(read_bytes(scratch / "m.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
}

TEST(JsonLines, ABrokenLineWithinNamesItsPlace) {
  TemporaryFolder scratch;
  write_bytes(scratch / "m.jsonl", "{\"step\":1}\n{\"step\":2\n{\"step\":3}\n");
  EXPECT_THAT(message_of([&] { read_json_lines(scratch / "m.jsonl"); }), HasSubstr("m.jsonl:2: not a JSON object"));
  EXPECT_THAT(message_of([&] { read_json_lines(scratch / "absent"); }), HasSubstr("absent: cannot open for reading"));
}

// A directory opens, and every read of it fails, as on a disk that does.
TEST(JsonLines, AReadThatFailsIsNoEnd) {
  TemporaryFolder scratch;
  std::filesystem::create_directory(scratch / "m.jsonl");
  EXPECT_THAT(message_of([&] { read_json_lines(scratch / "m.jsonl"); }), HasSubstr("m.jsonl: cannot read: "));
  EXPECT_THAT(message_of([&] { truncate_after(scratch / "m.jsonl", 10); }), HasSubstr("m.jsonl: cannot read: "));
}

TEST(JsonLines, TruncateDropsWhatCameAfterTheStep) {
  TemporaryFolder scratch;
  const std::string kept = "{\"event\":\"start\"}\n{\"step\":9}\n{\"step\":10,\"x\":\"nan\"}\n";
  write_bytes(scratch / "m.jsonl", kept + "{\"step\":11}\n{\"event\":\"note\"}\n{\"step\":100}\n{\"ste");
  EXPECT_EQ(truncate_after(scratch / "m.jsonl", 10), 3u);
  EXPECT_EQ(read_bytes(scratch / "m.jsonl"), kept + "{\"event\":\"note\"}\n");
  EXPECT_EQ(truncate_after(scratch / "m.jsonl", 10), 0u);
  EXPECT_EQ(truncate_after(scratch / "absent", 10), 0u);
  write_bytes(scratch / "m.jsonl", "{\"step\":1}\nrubbish\n{\"step\":2}\n");
  EXPECT_EQ(truncate_after(scratch / "m.jsonl", 1), 2u);
  EXPECT_EQ(read_bytes(scratch / "m.jsonl"), "{\"step\":1}\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);  // no temporary left
}

TEST(JsonLines, CutDropsWhatCameAfterTheStep) {
  TemporaryFolder scratch;
  const std::string kept = "{\"step\":9}\n\n{\"step\":10,\"x\":\"nan\"}\n{\"step\":10}\n";
  for (const std::string& tail : {std::string("{\"ste"), std::string(200000, '\0'), std::string("rubbish\n{}{\n\n")}) {
    write_bytes(scratch / "m.jsonl", kept + "{\"step\":11}\n{\"step\":100}\n" + tail);
    EXPECT_GE(cut_after(scratch / "m.jsonl", 10), 3u);
    EXPECT_EQ(read_bytes(scratch / "m.jsonl"), kept);
  }
  EXPECT_EQ(cut_after(scratch / "m.jsonl", 10), 0u);
  EXPECT_EQ(cut_after(scratch / "absent", 10), 0u);
  EXPECT_EQ(cut_after(scratch / "m.jsonl", 0), 5u - 1);
  EXPECT_EQ(read_bytes(scratch / "m.jsonl"), "");
  write_bytes(scratch / "m.jsonl", "{\"step\":1}");  // whole, only its newline is missing
  EXPECT_EQ(cut_after(scratch / "m.jsonl", 1), 0u);
  EXPECT_EQ(cut_after(scratch / "m.jsonl", 0), 1u);
}

// Others wait for the rank that looks: of a file of 64 GiB, nearly all of it a hole, only the end is read.
TEST(JsonLines, TheEndOfALongFileIsReachedAtOnce) {
  TemporaryFolder scratch;
  const std::string path = scratch / "m.jsonl";
  constexpr uint64_t kHole_bytes = uint64_t(64) << 30;
  write_bytes(path, "");
  if (truncate(path.c_str(), off_t(kHole_bytes)) != 0) GTEST_SKIP() << "no such files here";
  const std::string kept = "\n{\"step\":1}\n";
  AppendFile(path).append(kept + "{\"step\":2}\n{\"st");
  EXPECT_EQ(cut_after(path, 1), 2u);
  JsonLinesWriter(path).write({{"step", 2}});
  EXPECT_EQ(std::filesystem::file_size(path), kHole_bytes + kept.size() + kept.size() - 1);
}

TEST(JsonLines, AFullDiskLeavesWholeLines) {
  TemporaryFolder scratch;
  SmallDisk disk(scratch / "disk", "64k");
  if (!disk.ok()) GTEST_SKIP() << "cannot mount a small file system here";
  JsonLinesWriter writer(scratch / "disk/m.jsonl");
  uint64_t written = 0;
  std::string message = message_of([&] {
    for (;; ++written) writer.write({{"step", written}, {"text", std::string(3000, 'x')}});
  });
  EXPECT_THAT(message, HasSubstr("No space left on device"));
  EXPECT_GT(written, 10u);
  EXPECT_EQ(read_json_lines(scratch / "disk/m.jsonl").size(), written);
  EXPECT_EQ(read_bytes(scratch / "disk/m.jsonl").back(), '\n');
}

TEST(JsonLines, AKilledWriterLosesNothingItWrote) {
  TemporaryFolder scratch;
  JsonLinesWriter(scratch / "m.jsonl");
  int64_t next = 1;
  for (int round = 0; round < 20; ++round) {
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    pid_t child = fork();
    if (child == 0) {
      JsonLinesWriter writer(scratch / "m.jsonl");
      for (int64_t step = next;; ++step) {
        writer.write({{"step", step}, {"loss", 0.1 * double(step)}});
        if (write(told[1], &step, sizeof step) < 0) _exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(told[1]);
    int64_t last_told = next - 1;
    while (read(told[0], &last_told, sizeof last_told) > 0) {
    }
    close(told[0]);
    auto lines = read_json_lines(scratch / "m.jsonl");
    ASSERT_GE(int64_t(lines.size()), last_told);
    for (size_t i = 0; i < lines.size(); ++i) ASSERT_EQ(lines[i]["step"], i + 1);
    next = int64_t(lines.size()) + 1;
  }
  EXPECT_GT(next, 1);
}

}  // namespace
}  // namespace keel::io
