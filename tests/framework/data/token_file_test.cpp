#include "framework/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "framework/data/token_writer.h"
#include "tests/framework/data/little_endian.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::data {
namespace {

using namespace keel::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<int32_t> read_all(const TokenFile& file) {
  std::vector<int32_t> ids(size_t(file.tokens()));
  file.read(0, ids);
  return ids;
}

// The pair as Megatron-LM's writer lays it down, spelt out byte by byte: documents {10, 11}, {} and {12}, uint16.
struct Pair {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t type = 8;
  uint64_t sequences = 3, boundaries = 4;
  std::vector<int32_t> sizes = {2, 0, 1};
  std::vector<int64_t> pointers = {0, 4, 4}, documents = {0, 1, 2, 3};
  std::string tokens = bytes_of<uint16_t>(10) + bytes_of<uint16_t>(11) + bytes_of<uint16_t>(12);
  std::string tail;

  std::string index() const {
    std::string out = magic + bytes_of(version) + bytes_of(type) + bytes_of(sequences) + bytes_of(boundaries);
    for (int32_t size : sizes) out += bytes_of(size);
    for (int64_t pointer : pointers) out += bytes_of(pointer);
    for (int64_t document : documents) out += bytes_of(document);
    return out + tail;
  }
  std::string error(const TemporaryFolder& folder) const {
    write_bytes(folder / "x.bin", tokens);
    write_bytes(folder / "x.idx", index());
    return input_error_of([&] { TokenFile file(folder / "x"); });
  }
};

TEST(TokenFile, ReadsThePairByPrefixAndByEitherFile) {
  TemporaryFolder folder;
  EXPECT_EQ(Pair().error(folder), "");
  for (const char* name : {"x", "x.bin", "x.idx"}) {
    TokenFile file(folder / name);
    EXPECT_EQ(file.path(), folder / "x.bin");
    EXPECT_EQ(file.type(), TokenType::uint16);
    EXPECT_THAT(read_all(file), ElementsAre(10, 11, 12));
    ASSERT_EQ(file.documents(), 3);
    EXPECT_EQ(file.document_start(0), 0);
    EXPECT_EQ(file.document_start(1), 2);
    EXPECT_EQ(file.document_start(2), 2);
    EXPECT_EQ(file.document_start(3), 3);
    EXPECT_EQ(file.document_of(1), 0);
    EXPECT_EQ(file.document_of(2), 2);  // the empty document 1 holds no token
  }
}

TEST(TokenFile, ReadsDocumentsOfSeveralSequencesAndTheOtherTypes) {
  TemporaryFolder folder;
  Pair pair;
  pair.boundaries = 3;
  pair.documents = {0, 1, 3};
  EXPECT_EQ(pair.error(folder), "");
  EXPECT_EQ(TokenFile(folder / "x").document_of(2), 1);

  pair.type = 4;
  pair.pointers = {0, 8, 8};
  pair.tokens = bytes_of<int32_t>(70000) + bytes_of<int32_t>(0) + bytes_of<int32_t>(1);
  EXPECT_EQ(pair.error(folder), "");
  EXPECT_THAT(read_all(TokenFile(folder / "x")), ElementsAre(70000, 0, 1));

  pair.type = 1;
  pair.pointers = {0, 2, 2};
  pair.tokens = "\xff\x01\x02";
  EXPECT_EQ(pair.error(folder), "");
  EXPECT_THAT(read_all(TokenFile(folder / "x")), ElementsAre(255, 1, 2));

  pair.type = 5;
  pair.pointers = {0, 16, 16};
  pair.tokens = bytes_of<int64_t>(5) + bytes_of<int64_t>(6) + bytes_of<int64_t>(int64_t(1) << 40);
  EXPECT_EQ(pair.error(folder), "");
  std::vector<int32_t> two(2);
  TokenFile(folder / "x").read(0, two);
  EXPECT_THAT(two, ElementsAre(5, 6));
  EXPECT_THAT(input_error_of([&] { read_all(TokenFile(folder / "x")); }), HasSubstr("id 1099511627776 at token 2"));
}

TEST(TokenFile, RefusesEveryDamageOfTheIndexInOneLine) {  // CASES R45
  TemporaryFolder folder;
  auto expect = [&](auto damage, const char* part) {
    Pair pair;
    damage(pair);
    const std::string message = pair.error(folder);
    EXPECT_THAT(message, AllOf(HasSubstr(part), HasSubstr(folder / "x."), Not(HasSubstr("\n"))));
  };
  expect([](Pair& p) { p.magic[3] = 'X'; }, "byte 0: not an index");
  expect([](Pair& p) { p.version = 2; }, "byte 9: version 2");
  expect([](Pair& p) { p.type = 7; }, "byte 17: type code 7");
  expect([](Pair& p) { p.type = 0; }, "byte 17: type code 0");
  expect([](Pair& p) { p.sequences = 2; }, "byte 18: 2 sequences and 4 boundaries");
  expect([](Pair& p) { p.sequences = UINT64_MAX; }, "byte 18");
  expect([](Pair& p) { p.sequences = uint64_t(1) << 62; }, "byte 18");
  expect([](Pair& p) { p.boundaries = (uint64_t(1) << 61) + 4; }, "byte 18");  // times 8 wraps to 4
  expect([](Pair& p) { p.boundaries = 0, p.documents = {}; }, "byte 26: no boundaries");
  expect([](Pair& p) { p.tail = "x"; }, "byte 18");
  expect([](Pair& p) { p.documents.pop_back(); }, "byte 18");
  expect([](Pair& p) { p.sizes[1] = -1; }, "byte 38: sequence 1 has -1 tokens");
  expect([](Pair& p) { p.sizes[2] = INT32_MAX; }, "sequence 2 of 2147483647 uint16 tokens ends beyond");
  expect([](Pair& p) { p.pointers[1] = 2; }, "byte 54: sequence 1 begins at byte 2 of the tokens, where 4 is due");
  expect([](Pair& p) { p.pointers[2] = 6; }, "overlap or leave a gap");
  expect([](Pair& p) { p.pointers[0] = -4; }, "begins at byte -4");
  expect([](Pair& p) { p.documents[1] = 3; }, "byte 86: document 2 begins at sequence 2");
  expect([](Pair& p) { p.documents[0] = 1; }, "byte 70: document 0 begins at sequence 1");
  expect([](Pair& p) { p.documents[3] = 2; }, "document 3 begins at sequence 2");
  expect([](Pair& p) { p.documents[2] = -1; }, "begins at sequence -1");
  expect([](Pair& p) { p.documents[2] = INT64_MAX; }, "begins at sequence 9223372036854775807");
  expect([](Pair& p) { p.tokens.pop_back(); }, "ends beyond");
  expect([](Pair& p) { p.tokens += "xy"; }, "8 bytes, but");
  expect([](Pair& p) { p.tokens.clear(); }, "ends beyond");
  // Written as 32-bit ids, but the index says 16: refused by the sizes, not trained on.
  expect([](Pair& p) { p.tokens = std::string(12, 'a'); }, "do the two belong together?");
}

TEST(TokenFile, RefusesEveryTruncationWithoutACrash) {
  TemporaryFolder folder;
  const std::string index = Pair().index();
  write_bytes(folder / "x.bin", Pair().tokens);
  for (size_t length = 0; length < index.size(); ++length) {
    write_bytes(folder / "x.idx", index.substr(0, length));
    EXPECT_THAT(input_error_of([&] { TokenFile file(folder / "x"); }), HasSubstr("x.idx: ")) << length;
  }
}

TEST(TokenFile, SurvivesRandomDamage) {
  TemporaryFolder folder;
  std::mt19937 random(1);
  write_bytes(folder / "x.bin", Pair().tokens);
  for (int round = 0; round < 300; ++round) {
    std::string index = Pair().index();
    for (int flips = int(random() % 3); flips >= 0; --flips) index[random() % index.size()] = char(random());
    write_bytes(folder / "x.idx", index);
    std::string message = input_error_of([&] {
      TokenFile file(folder / "x");
      read_all(file);
      for (int64_t t = 0; t < file.tokens(); ++t) {
        const int64_t document = file.document_of(t);
        EXPECT_LE(file.document_start(document), t);
        EXPECT_GT(file.document_start(document + 1), t);
      }
    });
    EXPECT_THAT(message, Not(HasSubstr("internal"))) << round;
  }
}

TEST(TokenFile, ReadsLlmC) {
  TemporaryFolder folder;
  auto file_of = [&](int32_t magic, int32_t version, int32_t tokens, const std::string& ids) {
    std::string header = bytes_of(magic) + bytes_of(version) + bytes_of(tokens);
    write_bytes(folder / "x.bin", header + std::string(1024 - header.size(), '\0') + ids);
    return TokenFile(folder / "x.bin");
  };
  const std::string two_short = bytes_of<uint16_t>(50256) + bytes_of<uint16_t>(65535);
  const std::string two_long = bytes_of<uint32_t>(128000) + bytes_of<uint32_t>(4294967295u);
  EXPECT_THAT(read_all(file_of(20240520, 1, 2, two_short)), ElementsAre(50256, 65535));
  TokenFile llama = file_of(20240801, 7, 2, two_long);
  EXPECT_EQ(llama.documents(), 1);
  EXPECT_EQ(llama.document_start(1), 2);
  std::vector<int32_t> one(1);
  llama.read(0, one);
  EXPECT_EQ(one[0], 128000);
  EXPECT_THAT(input_error_of([&] { llama.verify_ids(128256); }),
              AllOf(HasSubstr("id 4294967295 at token 1"), HasSubstr("vocabulary of 128256")));

  auto error = [&](int32_t magic, int32_t version, int32_t tokens, const std::string& ids) {
    return input_error_of([&] { file_of(magic, version, tokens, ids); });
  };
  EXPECT_THAT(error(20240521, 1, 2, two_short), HasSubstr("byte 0: 20240521"));
  EXPECT_THAT(error(20240520, 7, 2, two_short), HasSubstr("byte 4: version 7"));
  EXPECT_THAT(error(20240520, 1, 3, two_short), HasSubstr("byte 8: 3 uint16 tokens do not fill the 4 bytes"));
  EXPECT_THAT(error(20240520, 1, -2, two_short), HasSubstr("byte 8: -2"));
  EXPECT_THAT(error(20240801, 7, 4, two_long), HasSubstr("cut short"));
  write_bytes(folder / "x.bin", "short");
  EXPECT_THAT(input_error_of([&] { TokenFile file(folder / "x.bin"); }), HasSubstr("5 bytes are too few"));
}

std::string numpy(const std::string& header, const std::string& ids, int major = 1) {
  std::string length = major == 1 ? bytes_of(uint16_t(header.size())) : bytes_of(uint32_t(header.size()));
  return "\x93NUMPY" + bytes_of(uint8_t(major)) + bytes_of(uint8_t(0)) + length + header + ids;
}

TEST(TokenFile, ReadsNumPy) {
  TemporaryFolder folder;
  auto read = [&](const std::string& bytes) {
    write_bytes(folder / "x.npy", bytes);
    return read_all(TokenFile(folder / "x.npy"));
  };
  auto header = [](const char* type) {
    return fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (2,), }}   \n", type);
  };
  for (int major : {1, 2, 3}) {
    EXPECT_THAT(read(numpy(header("<u2"), bytes_of<uint16_t>(65535) + bytes_of<uint16_t>(3), major)),
                ElementsAre(65535, 3));
    EXPECT_THAT(read(numpy(header("|u1"), "\x05\xff", major)), ElementsAre(5, 255));
  }
  EXPECT_THAT(read(numpy(header("<i4"), bytes_of<int32_t>(70000) + bytes_of<int32_t>(3))), ElementsAre(70000, 3));
  EXPECT_THAT(read(numpy(header("<u4"), bytes_of<uint32_t>(70000) + bytes_of<uint32_t>(3))), ElementsAre(70000, 3));
  EXPECT_THAT(read(numpy(header("<i8"), bytes_of<int64_t>(70000) + bytes_of<int64_t>(3))), ElementsAre(70000, 3));
  // As numpy.save writes arange(3, dtype=uint16): keys in order, padded with blanks to 128 bytes in all.
  std::string real = "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }";
  real.append(117 - real.size(), ' ').append("\n");
  EXPECT_THAT(read(numpy(real, std::string("\0\0\1\0\2\0", 6))), ElementsAre(0, 1, 2));

  auto error = [&](const std::string& bytes) { return input_error_of([&] { read(bytes); }); };
  auto with = [](const char* descr, const char* order, const char* shape) {
    return numpy(fmt::format("{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}\n", descr, order, shape), "abcd");
  };
  EXPECT_THAT(error(with("'>u2'", "False", "(2,)")), HasSubstr("its type is '>u2'"));
  EXPECT_THAT(error(with("'<f4'", "False", "(1,)")), HasSubstr("its type is '<f4'"));
  EXPECT_THAT(error(with("'<u2'", "True", "(2,)")), HasSubstr("not in C order"));
  EXPECT_THAT(error(with("'<u2'", "False", "(1, 2)")), HasSubstr("its shape is (1, 2)"));
  EXPECT_THAT(error(with("'<u2'", "False", "()")), HasSubstr("its shape is ()"));
  EXPECT_THAT(error(with("'<u2'", "False", "(-2,)")), HasSubstr("its shape is (-2,)"));
  EXPECT_THAT(error(with("'<u2'", "False", "(3,)")), HasSubstr("3 uint16 tokens do not fill the 4 bytes"));
  EXPECT_THAT(error(with("'<i4'", "False", "(4611686018427387905,)")), HasSubstr("do not fill"));
  EXPECT_THAT(error(with("'<u2'", "False", "(2")), HasSubstr("its shape is missing"));
  EXPECT_THAT(error(numpy(header("<u2"), "abcd", 4)), HasSubstr("byte 6: version 4"));
  EXPECT_THAT(error("\x93NUMPY\x01"), HasSubstr("not a NumPy file"));
  EXPECT_THAT(error(numpy(header("<u2"), "").substr(0, 20)), HasSubstr("cut short"));
}

TEST(TokenFile, SaysWhatIsMissing) {
  TemporaryFolder folder;
  EXPECT_THAT(input_error_of([&] { TokenFile file(folder / "nothing"); }), HasSubstr("keel tokenize"));
  write_bytes(folder / "x.idx", Pair().index());
  EXPECT_THAT(input_error_of([&] { TokenFile file(folder / "x.idx"); }), HasSubstr("x.bin, are missing"));
  EXPECT_THAT(input_error_of([&] { TokenFile file("/proc/self"); }), HasSubstr("no token file"));
}

TEST(TokenFile, VerifiesEveryIdAndNamesTheFirstBadOne) {  // CASES R46
  TemporaryFolder folder;
  // 32000 at token 212345, in document 2 which begins at token 200000; the padded vocabulary must not hide it.
  std::vector<int32_t> ids(300000, 31999);
  ids[212345] = ids[290000] = 32000;
  TokenWriter writer(folder / "x", 32128);
  for (size_t begin = 0; begin < ids.size(); begin += 100000) {
    writer.append(std::span(ids).subspan(begin, 100000));
    writer.end_document();
  }
  writer.finish();
  TokenFile file(folder / "x");
  EXPECT_EQ(input_error_of([&] { file.verify_ids(32001); }), "");
  EXPECT_THAT(input_error_of([&] { file.verify_ids(32000); }),
              AllOf(HasSubstr("x.bin: id 32000 at token 212345 (document 2, its token 12345)"),
                    HasSubstr("vocabulary of 32000 ids")));
  // Divided over ranks nothing is left out, also where there are more of them than blocks of tokens.
  for (int parts : {5, 7}) {
    std::string complaints;
    for (int part = 0; part < parts; ++part) complaints += input_error_of([&] { file.verify_ids(32000, part, parts); });
    EXPECT_THAT(complaints, HasSubstr("at token 212345")) << parts;
    EXPECT_THAT(complaints, HasSubstr("at token 290000")) << parts;
  }
  Pair negative;
  negative.type = 4;
  negative.pointers = {0, 8, 8};
  negative.tokens = bytes_of<int32_t>(0) + bytes_of<int32_t>(-1) + bytes_of<int32_t>(1);
  EXPECT_EQ(negative.error(folder), "");
  EXPECT_THAT(input_error_of([&] { TokenFile(folder / "x").verify_ids(32000); }), HasSubstr("id -1 at token 1"));
}

TEST(TokenFile, ReadsOutsideTheFileAreRefused) {  // CASES R51
  TemporaryFolder folder;
  ASSERT_EQ(Pair().error(folder), "");
  TokenFile file(folder / "x");
  std::vector<int32_t> two(2);
  EXPECT_THROW(file.read(2, two), Error);
  EXPECT_THROW(file.read(-1, two), Error);
  EXPECT_THROW(file.read(INT64_MAX, two), Error);
  EXPECT_THROW(file.document_of(3), Error);
  EXPECT_THROW(file.document_start(4), Error);
}

TEST(TokenFile, NotesMustSpeakOfTheseFiles) {
  TemporaryFolder folder;
  ASSERT_EQ(Pair().error(folder), "");
  TokenNotes notes{
      .tokenizer = "bytes", .vocabulary = 257, .end_of_document = 256, .tokens = 3, .documents = 3, .bytes = 10};
  write_bytes(folder / "x.json", notes_text(notes));
  ASSERT_TRUE(TokenFile(folder / "x").notes());
  EXPECT_EQ(TokenFile(folder / "x").notes()->bytes, 10);
  EXPECT_THAT(input_error_of([&] { TokenFile(folder / "x").verify_ids(200); }),
              HasSubstr("made with a vocabulary of 257 (bytes), but the model's is 200"));
  notes.tokens = 4;
  write_bytes(folder / "x.json", notes_text(notes));
  EXPECT_THAT(input_error_of([&] { TokenFile file(folder / "x"); }), HasSubstr("speaks of 4 tokens"));
  for (const char* text : {"", "[]", "{\"tokens\": ", "\xff"}) {
    write_bytes(folder / "x.json", text);
    EXPECT_THAT(input_error_of([&] { TokenFile file(folder / "x"); }), HasSubstr("not a JSON object")) << text;
  }
  write_bytes(folder / "x.json", "{\"tokenizer\": \"bytes\", \"model\": \"\", \"vocabulary\": 18446744073709551615}");
  EXPECT_THAT(input_error_of([&] { TokenFile file(folder / "x"); }), HasSubstr("'vocabulary' must be a whole number"));
  write_bytes(folder / "x.json", "{\"tokenizer\": 5}");
  EXPECT_THAT(input_error_of([&] { TokenFile file(folder / "x"); }), HasSubstr("'tokenizer' must be a text"));
}

TEST(NotesOf, APairIsNamedByItsPrefixOrEitherFile) {
  TemporaryFolder folder;
  ASSERT_EQ(Pair().error(folder), "");
  EXPECT_FALSE(notes_of(folder / "x"));
  write_bytes(folder / "x.json", notes_text({.tokenizer = "bytes", .vocabulary = 257}));
  for (const char* name : {"x", "x.bin", "x.idx"}) EXPECT_TRUE(notes_of(folder / name)) << name;
  std::filesystem::remove(folder / "x.bin");  // a model may be used where its data are not
  std::filesystem::remove(folder / "x.idx");
  EXPECT_TRUE(notes_of(folder / "x.bin"));
  // Beside bare ids a .json is somebody else's.
  write_bytes(folder / "x.json", "{}");
  write_bytes(folder / "x.bin", "ids");
  EXPECT_FALSE(notes_of(folder / "x.bin"));
}

TEST(MatchingFiles, AreThoseOfTokens) {
  TemporaryFolder folder;
  for (const char* name : {"b_1.bin", "b_1.idx", "b_0.bin", "b_0.idx", "b_0.json", "b_2.npy", "c.bin"})
    write_bytes(folder / name, "");
  EXPECT_THAT(matching_files(folder / "b_*"), ElementsAre(folder / "b_0.bin", folder / "b_1.bin", folder / "b_2.npy"));
  EXPECT_THAT(matching_files(folder / "b_[01].bin"), ElementsAre(folder / "b_0.bin", folder / "b_1.bin"));
  EXPECT_THAT(matching_files(folder / "d_*"), ElementsAre());
  EXPECT_THAT(matching_files(folder / "d"), ElementsAre(folder / "d"));
  write_bytes(folder / "odd[1].bin", "");
  EXPECT_THAT(matching_files(folder / "odd[1]"), ElementsAre(folder / "odd[1]"));
}

TEST(TokenFile, ContentHashSeesEveryPartOfASmallFile) {
  TemporaryFolder folder;
  ASSERT_EQ(Pair().error(folder), "");
  const uint64_t hash = TokenFile(folder / "x").content_hash();
  EXPECT_EQ(hash, TokenFile(folder / "x").content_hash());
  for (size_t i = 0; i < 6; ++i) {
    Pair pair;
    pair.tokens[i] ^= 1;
    ASSERT_EQ(pair.error(folder), "");
    EXPECT_NE(TokenFile(folder / "x").content_hash(), hash) << i;
  }
}

}  // namespace
}  // namespace keel::data
