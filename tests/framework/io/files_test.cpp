#include "framework/io/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "framework/io/crc32c.h"
#include "tests/support/disk.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace {
int calls_of_fallocate = 0;
}  // namespace

// In place of the C library's.
extern "C" int fallocate(int file, int mode, off_t offset, off_t length) {
  ++calls_of_fallocate;
  return int(syscall(SYS_fallocate, file, mode, offset, length));
}

namespace keel::io {
namespace {

using namespace keel::testing;
using ::testing::HasSubstr;

TEST(ReadFile, ItsChecksumIsThatOfTheWholeAndItHasALimit) {
  TemporaryFolder scratch;
  std::string text(200000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = char(i * i >> 3);
  write_file(scratch / "a", text);
  EXPECT_EQ(read_file(scratch / "a", 200000), text);
  EXPECT_EQ(crc32c_of_file(scratch / "a", 200000), crc32c(std::as_bytes(std::span(text))));
  EXPECT_THROW(read_file(scratch / "a", 199999), Error);
  EXPECT_THROW(crc32c_of_file(scratch / "a", 199999), Error);
}

TEST(WriteFile, ReplacesWholeAndLeavesNothingElse) {
  TemporaryFolder scratch;
  write_file(scratch / "a", "old, and longer");
  write_file(scratch / "a", "new");
  EXPECT_EQ(read_bytes(scratch / "a"), "new");
  EXPECT_EQ(files_in(scratch.path()).size(), 1u);
}

TEST(WriteFile, WithoutCommitTheOldContentStays) {
  TemporaryFolder scratch;
  write_file(scratch / "a", "old");
  {
    AtomicFile file(scratch / "a");
    file.write("half of the new");
    EXPECT_EQ(read_bytes(scratch / "a"), "old");
  }
  EXPECT_EQ(read_bytes(scratch / "a"), "old");
  EXPECT_EQ(files_in(scratch.path()).size(), 1u);
}

TEST(WriteFile, AKilledWriterLeavesTheOldOrTheNew) {
  TemporaryFolder scratch;
  const std::string a(200000, 'a'), b(200000, 'b');
  write_file(scratch / "x", a);
  for (int round = 0; round < 20; ++round) {
    pid_t child = fork();
    if (child == 0)
      for (bool even = true;; even = !even) write_file(scratch / "x", even ? a : b);
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string content = read_bytes(scratch / "x");
    ASSERT_TRUE(content == a || content == b) << content.size();
  }
}

TEST(WriteFile, AFullDiskKeepsTheOldAndSaysWhatToDo) {
  TemporaryFolder scratch;
  SmallDisk disk(scratch / "disk", "256k");
  if (!disk.ok()) GTEST_SKIP() << "cannot mount a small file system here";
  write_file(scratch / "disk/a", "old");
  EXPECT_LE(free_disk_bytes(scratch / "disk"), 256u << 10);
  std::string message = message_of([&] { write_file(scratch / "disk/a", std::string(1 << 20, 'x')); });
  EXPECT_THAT(message, HasSubstr("disk/a.tmp"));
  EXPECT_THAT(message, HasSubstr("No space left on device (errno 28): free some space"));
  EXPECT_EQ(read_bytes(scratch / "disk/a"), "old");
  EXPECT_EQ(files_in(scratch / "disk").size(), 1u);
}

TEST(ReserveDisk, TakesTheSpaceOrNamesBothSizes) {
  TemporaryFolder scratch;
  SmallDisk disk(scratch / "disk", "1m");
  if (!disk.ok()) GTEST_SKIP() << "cannot mount a small file system here";
  reserve_disk(scratch / "disk/a", 512 << 10);
  calls_of_fallocate = 0;
  EXPECT_LE(free_disk_bytes(scratch / "disk"), 512u << 10);
  std::string message = message_of([&] { reserve_disk(scratch / "disk/b", 600 << 10); });
  EXPECT_THAT(message, HasSubstr("disk/b: 600.0 KiB are needed, 512.0 KiB are free: No space left on device"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "disk/b"));
  EXPECT_EQ(calls_of_fallocate, 0) << "it may take all that is left before it fails";
  reserve_disk(scratch / "disk/a", 0);
  EXPECT_EQ(std::filesystem::file_size(scratch / "disk/a"), 512u << 10);  // never shortened
}

TEST(WriteFile, ALimitOnTheFileSizeIsAnErrorToo) {
  TemporaryFolder scratch;
  write_file(scratch / "a", "old");
  FileSizeLimit limit(64 << 10);
  EXPECT_THAT(message_of([&] { write_file(scratch / "a", std::string(1 << 20, 'x')); }), HasSubstr("ulimit -f"));
  EXPECT_EQ(read_bytes(scratch / "a"), "old");
}

TEST(WriteFile, UnwritableDirectories) {
  TemporaryFolder scratch;
  for (const char* path : {"/proc/keel", "/nonexistent/a"}) {
    try {
      write_file(path, "x");
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("cannot open for writing: "));
    }
  }
  std::filesystem::create_directory(scratch / "ro");
  ReadOnly read_only(scratch / "ro");
  if (!read_only.ok()) GTEST_SKIP() << "cannot make a directory read-only here";
  EXPECT_THAT(message_of([&] { write_file(scratch / "ro/a", "x"); }), HasSubstr("directory"));
}

TEST(ReadFile, WholeOrAnError) {
  TemporaryFolder scratch;
  const std::string content = std::string(100000, 'x') + '\0' + "end";
  write_bytes(scratch / "a", content);
  EXPECT_EQ(read_file(scratch / "a", content.size()), content);
  EXPECT_THAT(message_of([&] { read_file(scratch / "a", content.size() - 1); }), HasSubstr("a: larger than the 97.7"));
  EXPECT_THAT(message_of([&] { read_file(scratch / "b", 9); }), HasSubstr("b: cannot open for reading: No such file"));
  EXPECT_THAT(message_of([&] { read_file(scratch.path(), 9); }), HasSubstr("Is a directory"));
}

TEST(CreateDirectories, OverAFileFails) {
  TemporaryFolder scratch;
  create_directories(scratch / "a/b/c");
  create_directories(scratch / "a/b/c");
  EXPECT_TRUE(std::filesystem::is_directory(scratch / "a/b/c"));
  write_bytes(scratch / "file", "x");
  EXPECT_THAT(message_of([&] { create_directories(scratch / "file"); }), HasSubstr("file: cannot create"));
  EXPECT_THAT(message_of([&] { create_directories(scratch / "file/below"); }), HasSubstr("file/below: cannot create"));
}

TEST(RenameFile, ReplacesAndReports) {
  TemporaryFolder scratch;
  write_bytes(scratch / "a", "new"), write_bytes(scratch / "b", "old");
  sync_file(scratch / "a");
  rename_file(scratch / "a", scratch / "b");
  EXPECT_EQ(read_bytes(scratch / "b"), "new");
  EXPECT_THAT(message_of([&] { rename_file(scratch / "a", scratch / "b"); }), HasSubstr("a: cannot rename to "));
}

TEST(AppendFile, AFailedRecordLeavesNoPart) {
  TemporaryFolder scratch;
  AppendFile file(scratch / "a");
  file.append("whole\n");
  {
    FileSizeLimit limit(4096);
    EXPECT_THROW(file.append(std::string(10000, 'x')), Error);
  }
  file.append("again\n");
  EXPECT_EQ(read_bytes(scratch / "a"), "whole\nagain\n");
}

TEST(RunLock, NamesItsHolderAndGoesWithIt) {
  TemporaryFolder scratch;
  {
    RunLock lock(scratch.path());
    try {
      RunLock second(scratch.path());
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_THAT(error.what(), ::testing::ContainsRegex("another run works in this directory \\(host .*, process " +
                                                         std::to_string(getpid()) + ", since 20..-..-.. ..:..:.. UTC"));
    }
  }
  EXPECT_NO_THROW(RunLock(scratch.path()));
}

TEST(RunLock, CanBeTried) {
  TemporaryFolder scratch;
  {
    const std::optional<RunLock> lock = RunLock::try_take(scratch.path(), RunLock::Beside::others);
    ASSERT_TRUE(lock);
    EXPECT_FALSE(RunLock::try_take(scratch.path(), RunLock::Beside::others)) << "in this process, too";
  }
  EXPECT_TRUE(RunLock::try_take(scratch.path(), RunLock::Beside::others));
}

TEST(RunLock, AKilledHolderFreesIt) {
  TemporaryFolder scratch;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    RunLock lock(scratch.path());
    (void)!write(ready[1], "x", 1);
    pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(message_of([&] { RunLock lock(scratch.path()); }), HasSubstr("process " + std::to_string(child)));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(message_of([&] { RunLock lock(scratch.path()); }), "");
  close(ready[0]), close(ready[1]);
}

}  // namespace
}  // namespace keel::io
