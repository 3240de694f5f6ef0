#include "checkpoints/user_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/base/error.h"
#include "framework/io/crc32c.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::checkpoints {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBlock = 4096;

class UserBlock : public ::testing::Test {
 protected:
  // A block, 3000 bytes, and among them two raw ranges given out of order.
  UserBlock() {
    std::string bytes(kBlock, '\0');
    for (int i = 0; i < 3000; ++i) bytes += char(i * 7 + i / 256);
    testing::write_bytes(path, bytes);
    write_user_block(path, kBlock, {{kBlock + 2000, 500}, {kBlock + 100, 1000}});
    whole = testing::read_bytes(path);
  }
  std::string complaint(const std::string& bytes) {
    testing::write_bytes(path, bytes);
    return testing::message_of([&] { verify_user_block(path); });
  }
  void flip(size_t byte) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(std::streamoff(byte));
    const char changed = char(file.get() ^ (1 << (byte % 8)));
    file.seekp(std::streamoff(byte));
    file.put(changed);
  }
  template <class T>
  T at(size_t byte) const {
    T value;
    std::memcpy(&value, whole.data() + byte, sizeof value);
    return value;
  }
  testing::TemporaryFolder scratch;
  const std::string path = scratch / "x.h5";
  std::string whole;
};

TEST_F(UserBlock, Verifies) {
  EXPECT_EQ(complaint(whole), "");
}

// README's layout, byte by byte and with the checksum recomputed here.
TEST_F(UserBlock, IsAsTheGrammarSays) {
  EXPECT_EQ(whole.substr(0, 8), "KEELCKP1");
  EXPECT_EQ(at<uint64_t>(16), kBlock);
  EXPECT_EQ(at<uint64_t>(24), kBlock + 3000);
  EXPECT_EQ(at<uint64_t>(32), 2u);
  EXPECT_EQ(at<uint64_t>(40), kBlock + 100);
  EXPECT_EQ(at<uint64_t>(48), 1000u);
  EXPECT_EQ(at<uint64_t>(56), kBlock + 2000);
  const std::string rest = whole.substr(kBlock, 100) + whole.substr(kBlock + 1100, 900) + whole.substr(kBlock + 2500);
  EXPECT_EQ(at<uint32_t>(12), io::crc32c(std::as_bytes(std::span(rest))));
  std::string block = whole.substr(0, kBlock);
  block.replace(8, 4, 4, '\0');
  EXPECT_EQ(at<uint32_t>(8), io::crc32c(std::as_bytes(std::span(block))));
}

// Every byte of the file, except those in ranges, which have checksums of their own.
TEST_F(UserBlock, SeesEveryChangedByte) {
  for (size_t i = 0; i < whole.size(); ++i) {
    flip(i);
    const bool raw = (i >= kBlock + 100 && i < kBlock + 1100) || (i >= kBlock + 2000 && i < kBlock + 2500);
    EXPECT_EQ(testing::message_of([&] { verify_user_block(path); }).empty(), raw) << i;
    flip(i);
  }
}

TEST_F(UserBlock, SeesEveryLength) {
  for (size_t size = 0; size < whole.size(); size += 371) EXPECT_NE(complaint(whole.substr(0, size)), "") << size;
  EXPECT_THAT(complaint(whole + "x"), HasSubstr("7097 bytes of 7096"));
  EXPECT_THAT(complaint(whole.substr(0, whole.size() / 2)), HasSubstr("cut short"));
  EXPECT_THAT(complaint(""), HasSubstr("0 bytes are no checkpoint"));
  EXPECT_THAT(complaint(std::string(96, 'x')), HasSubstr("not a Keel checkpoint"));
  EXPECT_THAT(testing::message_of([&] { verify_user_block(path + "absent"); }), HasSubstr("No such file"));
}

// Sizes that contradict one another must neither crash nor ask for much memory, checksum or no.
TEST_F(UserBlock, HostileNumbers) {
  for (size_t field : {16, 24, 32, 40, 48, 56, 64})
    for (uint64_t value : {uint64_t(0), uint64_t(1), uint64_t(39), kBlock - 1, uint64_t(1) << 32, ~uint64_t(0)}) {
      std::string bytes = whole;
      std::memcpy(bytes.data() + field, &value, sizeof value);
      EXPECT_NE(complaint(bytes), "") << field << " " << value;
    }
}

TEST_F(UserBlock, Sizes) {
  EXPECT_EQ(user_block_bytes(0), 4096u);
  EXPECT_EQ(user_block_bytes(253), 4096u);  // 40 + 16 * 253 = 4088
  EXPECT_EQ(user_block_bytes(254), 8192u);
  EXPECT_THROW(write_user_block(path, 4096, std::vector<ByteRange>(254, {5000, 0})), Error);
  EXPECT_THROW(write_user_block(path, 4096, {{4096, 100}, {4150, 10}}), Error);
  EXPECT_THROW(write_user_block(path, 4096, {{4096, 3001}}), Error);
}

}  // namespace
}  // namespace keel::checkpoints
