#include "framework/data/mapped_ranges.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>
#include <cstdlib>
#include <vector>

#include "framework/data/mapped_file.h"
#include "tests/support/folder.h"

namespace keel::data {
namespace {

using namespace keel::testing;

constexpr int64_t kBytes = 1 << 20;

// A disk that fails raises the same signal.
TEST(MappedRangesDeathTest, AFileCutShortWhileItIsReadIsNamed) {
  const TemporaryFolder folder;
  const std::string first = folder / "first.bin", second = folder / "second.bin";
  for (const std::string& path : {first, second}) write_bytes(path, std::string(kBytes, 'x'));
  const auto read_after_cut = [&] {
    const MappedFile whole(first);
    MappedFile gone(first), file(second);
    gone = MappedFile();
    const MappedFile cut = std::move(file);
    std::filesystem::resize_file(second, 100);
    if (whole.at<char>(kBytes - 1) == 'x') std::exit(cut.at<char>(kBytes - 1));
  };
  EXPECT_EXIT(read_after_cut(), ::testing::ExitedWithCode(1), "keel: error: .*second.bin: it was cut short");
}

// Of thousands of shards, each with its index.
TEST(MappedRangesDeathTest, EveryOneOfManyFilesIsNamed) {
  const TemporaryFolder folder;
  const std::string many = folder / "many.bin", last = folder / "last.bin";
  for (const std::string& path : {many, last}) write_bytes(path, std::string(kBytes, 'x'));
  const auto read_after_cut = [&] {
    std::vector<MappedFile> files;
    for (int i = 0; i < 2500; ++i) files.emplace_back(many);
    const MappedFile cut(last);
    for (int i = 0; i < 2500; i += 2) files[size_t(i)] = MappedFile();
    for (int i = 0; i < 2500; i += 3) files[size_t(i)] = MappedFile(many);
    std::filesystem::resize_file(last, 100);
    if (files.back().at<char>(kBytes - 1) == 'x') std::exit(cut.at<char>(kBytes - 1));
  };
  EXPECT_EXIT(read_after_cut(), ::testing::ExitedWithCode(1), "keel: error: .*last.bin: it was cut short");
}

TEST(MappedRangesDeathTest, AnotherBusErrorGoesItsWay) {
  const TemporaryFolder folder;
  for (const char* name : {"file.bin", "other.bin"}) write_bytes(folder / name, std::string(kBytes, 'x'));
  const auto read_after_cut = [&] {
    const MappedFile file(folder / "file.bin");
    const std::string path = folder / "other.bin";
    const int other = ::open(path.c_str(), O_RDONLY);
    const auto* bytes = static_cast<const char*>(::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, other, 0));
    std::filesystem::resize_file(path, 100);
    std::exit(bytes[kBytes - 1]);
  };
  EXPECT_EXIT(read_after_cut(), ::testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace keel::data
