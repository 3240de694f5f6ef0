#include "framework/data/token_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/framework/data/little_endian.h"
#include "tests/support/disk.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::data {
namespace {

using namespace keel::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<int32_t> read_all(const TokenFile& file) {
  std::vector<int32_t> ids(size_t(file.tokens()));
  file.read(0, ids);
  return ids;
}

TEST(TokenWriter, WritesTheFormatByteForByte) {
  TemporaryFolder folder;
  TokenWriter writer(folder / "x", 65536);
  writer.append(std::vector<int32_t>{1, 65535});
  writer.end_document();
  writer.end_document();  // empty
  writer.append(std::vector<int32_t>{7});
  writer.end_document();
  writer.finish();
  std::string index("MMIDIDX\0\0", 9);
  index += bytes_of<uint64_t>(1) + bytes_of<uint8_t>(8) + bytes_of<uint64_t>(3) + bytes_of<uint64_t>(4);
  for (int32_t size : {2, 0, 1}) index += bytes_of(size);
  for (int64_t pointer : {0, 4, 4}) index += bytes_of(pointer);
  for (int64_t document : {0, 1, 2, 3}) index += bytes_of(document);
  EXPECT_EQ(read_bytes(folder / "x.idx"), index);
  EXPECT_EQ(read_bytes(folder / "x.bin"), std::string("\1\0\xff\xff\7\0", 6));
  EXPECT_EQ(files_in(folder.path()), (std::set<std::string>{"x.bin", "x.idx"}));
}

TEST(TokenWriter, ChoosesTheTypeByTheLargestId) {  // CASES R45
  EXPECT_EQ(smallest_type(256), TokenType::uint8);
  EXPECT_EQ(smallest_type(257), TokenType::uint16);
  EXPECT_EQ(smallest_type(65536), TokenType::uint16);
  EXPECT_EQ(smallest_type(65537), TokenType::int32);
  EXPECT_THROW(smallest_type(0), Error);
  EXPECT_THROW(smallest_type((int64_t(1) << 31) + 1), Error);
  for (auto [vocabulary, id] : {std::pair{256, 255}, {65536, 65535}, {65537, 65536}, {70001, 70000}}) {
    TemporaryFolder folder;
    TokenWriter writer(folder / "x", vocabulary);
    writer.append(std::vector<int32_t>{0, id});
    EXPECT_THAT(input_error_of([&] { writer.append(std::vector<int32_t>{vocabulary}); }),
                HasSubstr("outside the vocabulary"));
    EXPECT_THROW(writer.append(std::vector<int32_t>{-1}), Error);
    writer.end_document();
    writer.finish();
    EXPECT_THAT(read_all(TokenFile(folder / "x")), ElementsAre(0, id));
    EXPECT_EQ(TokenFile(folder / "x").type(), smallest_type(vocabulary));
  }
}

TEST(TokenWriter, CutsLongDocumentsIntoSequences) {
  TemporaryFolder folder;
  TokenWriter writer(folder / "x", 1000, 3);
  std::vector<int64_t> starts;
  std::vector<int32_t> ids;
  for (int length : {0, 3, 7, 1, 6, 0}) {
    starts.push_back(int64_t(ids.size()));
    for (int i = 0; i < length; ++i) {
      ids.push_back(int32_t(ids.size()));
      writer.append(std::span(ids).last(1));
    }
    writer.end_document();
  }
  writer.finish();
  TokenFile file(folder / "x");
  EXPECT_EQ(read_all(file), ids);
  ASSERT_EQ(file.documents(), 6);
  for (size_t i = 0; i < starts.size(); ++i) EXPECT_EQ(file.document_start(int64_t(i)), starts[i]) << i;
  EXPECT_EQ(read_bytes(folder / "x.idx").size(), 34u + 12 * 9 + 8 * 7);
}

TEST(TokenWriter, LeavesNothingBehindWithoutFinishAndKeepsTheOldPair) {
  TemporaryFolder folder;
  auto write = [&](int32_t id, bool finish) {
    TokenWriter writer(folder / "x", 1000);
    writer.append(std::vector<int32_t>{id});
    writer.end_document();
    if (finish) writer.finish();
  };
  write(1, true);
  write_bytes(folder / "x.json", notes_text({.tokenizer = "bytes", .vocabulary = 257, .tokens = 1, .documents = 1}));
  write(2, false);
  EXPECT_THAT(read_all(TokenFile(folder / "x")), ElementsAre(1));
  EXPECT_EQ(files_in(folder.path()), (std::set<std::string>{"x.bin", "x.idx", "x.json"}));
  write(3, true);
  EXPECT_THAT(read_all(TokenFile(folder / "x")), ElementsAre(3));
  EXPECT_FALSE(TokenFile(folder / "x").notes());  // notes of the old tokens must not outlive them
  EXPECT_THAT(input_error_of([&] { TokenWriter writer(folder / "no/x", 10); }), HasSubstr("cannot open for writing"));
}

// A fault of the system, not of the input; whether the ids or, at the end, the index find no room.
TEST(TokenWriter, ReportsAFullDisk) {
  for (const int tokens : {3000, 1}) {
    TemporaryFolder folder;
    const testing::FileSizeLimit limit(4000);
    const std::string message = input_error_of([&] {
      TokenWriter writer(folder / "x", 1000);
      for (int document = 0; document < 300; ++document) {
        writer.append(std::vector<int32_t>(size_t(tokens), 1));
        writer.end_document();
      }
      writer.finish();
    });
    EXPECT_THAT(message, AllOf(StartsWith("internal: "), HasSubstr(tokens > 1 ? "x.bin" : "x.idx"),
                               HasSubstr("File too large"), HasSubstr("ulimit -f")));
    EXPECT_EQ(files_in(folder.path()), std::set<std::string>());
  }
}

TEST(TokenWriter, TwoAtOnceDoNotMix) {
  TemporaryFolder folder;
  TokenWriter a(folder / "x", 1000), b(folder / "x", 1000);
  for (int i = 0; i < 3; ++i) {
    a.append(std::vector<int32_t>{1, 1});
    b.append(std::vector<int32_t>{2});
  }
  for (TokenWriter* writer : {&a, &b}) {
    writer->end_document();
    writer->finish();
    EXPECT_EQ(read_all(TokenFile(folder / "x")), std::vector<int32_t>(writer == &a ? 6 : 3, writer == &a ? 1 : 2));
  }
}

TEST(TokenWriter, RoundTripsRandomDocuments) {
  TemporaryFolder folder;
  std::mt19937 random(2);
  TokenWriter writer(folder / "x", 300);
  std::vector<int32_t> ids;
  std::vector<int64_t> document_of;
  for (int document = 0; document < 500; ++document) {
    std::vector<int32_t> text(random() % 4 == 0 ? 0 : random() % 50);
    for (int32_t& id : text) id = int32_t(random() % 300);
    writer.append(text);
    writer.end_document();
    ids.insert(ids.end(), text.begin(), text.end());
    document_of.resize(ids.size(), document);
  }
  writer.finish();
  TokenFile file(folder / "x");
  EXPECT_EQ(read_all(file), ids);
  EXPECT_EQ(file.documents(), 500);
  for (size_t t = 0; t < ids.size(); ++t) ASSERT_EQ(file.document_of(int64_t(t)), document_of[t]) << t;
}

}  // namespace
}  // namespace keel::data
