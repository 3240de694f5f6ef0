#include "framework/data/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "framework/base/utf8.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::data {
namespace {

using namespace keel::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Texts = std::vector<std::string>;

Texts documents_of(const Texts& files, DocumentRule rule, size_t piece_bytes = 1000) {
  TemporaryFolder folder;
  Texts paths, documents;
  for (const std::string& file : files) {
    paths.push_back(folder / std::to_string(paths.size()));
    write_bytes(paths.back(), file);
  }
  DocumentReader reader(paths, rule, piece_bytes);
  TextPiece piece;
  bool ended = true;
  while (reader.next(piece)) {
    EXPECT_LE(piece.text.size(), piece_bytes);
    if (ended) documents.emplace_back();
    documents.back() += piece.text;
    ended = piece.ends_document;
  }
  EXPECT_TRUE(ended);
  EXPECT_EQ(reader.bytes(), reader.total_bytes());
  return documents;
}

TEST(Documents, EndWhereTheRuleSays) {
  const Texts files = {"one\ntwo\n\n \n  three\nfour\n\n", "", "five"};
  EXPECT_THAT(documents_of(files, DocumentRule::file), ElementsAre("one\ntwo\n\n \n  three\nfour\n\n", "five"));
  EXPECT_THAT(documents_of(files, DocumentRule::blank), ElementsAre("one\ntwo\n\n \n", "  three\nfour\n\n", "five"));
  EXPECT_THAT(documents_of(files, DocumentRule::line),
              ElementsAre("one\n", "two\n", "\n", " \n", "  three\n", "four\n", "\n", "five"));
  EXPECT_THAT(documents_of({"\n\nfirst\r\n\r\nsecond"}, DocumentRule::blank),
              ElementsAre("\n\nfirst\r\n\r\n", "second"));
  EXPECT_THAT(documents_of({"\n \n"}, DocumentRule::blank), ElementsAre("\n \n"));
}

TEST(Documents, DoNotDependOnWhereThePiecesAreCut) {
  std::mt19937 random(8);
  for (int round = 0; round < 60; ++round) {
    Texts files(1 + random() % 3);
    const char* parts[] = {"a", "bc", "\n", "\n\n", " ", "\xC3\xA9", "\xF0\x9F\x98\x80", "\xFF", "word word"};
    for (std::string& file : files)
      for (int i = int(random() % 60); i > 0; --i) file += parts[random() % std::size(parts)];
    for (DocumentRule rule : {DocumentRule::file, DocumentRule::line, DocumentRule::blank}) {
      const Texts whole = documents_of(files, rule, 1000), cut = documents_of(files, rule, 4 + random() % 12);
      std::string joined, expected;
      for (const std::string& document : cut) joined += document;
      for (const std::string& file : files) expected += file;
      EXPECT_EQ(joined, expected);
      // A cut within the blanks before a document's first line leaves these to the document before.
      if (rule != DocumentRule::blank) {
        EXPECT_EQ(cut, whole);
      }
      EXPECT_EQ(cut.size(), whole.size()) << ::testing::PrintToString(cut) << ::testing::PrintToString(whole);
    }
  }
}

TEST(Documents, PiecesSplitNoCharacterAndPreferTheEndOfALine) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 2000; ++i) text += i % 30 == 29 ? "\n" : "\xE2\x82\xAC";
  text += std::string(1000, 'x');
  write_bytes(folder / "x", text);
  DocumentReader reader({folder / "x"}, DocumentRule::file, 100);
  TextPiece piece;
  std::string joined;
  while (reader.next(piece)) {
    EXPECT_EQ(count_invalid_bytes(piece.text), 0);
    if (joined.size() + piece.text.size() < text.size() - 1100) {
      EXPECT_EQ(piece.text.back(), '\n');
    }
    joined += piece.text;
  }
  EXPECT_EQ(joined, text);
}

TEST(Documents, NameFilesThatCannotBeRead) {
  TemporaryFolder folder;
  auto error = [&](const std::string& path) {
    return input_error_of([&] { DocumentReader reader({path}, DocumentRule::file, 100); });
  };
  EXPECT_THAT(error(folder / "none.txt"), HasSubstr("none.txt: cannot read it: No such file"));
  std::filesystem::create_directory(folder / "d");
  EXPECT_THAT(error(folder / "d"), HasSubstr("it is a folder"));
}

TEST(Documents, OfJsonLinesAreTheTexts) {
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "word " + std::to_string(i) + (i % 9 == 0 ? "\n" : " ");
  const nlohmann::json lines[] = {{{"text", "a\nb \u00e9"}, {"url", "x"}}, {{"text", ""}}, {{"text", words}}};
  std::string file;
  for (const auto& line : lines) file += line.dump() + "\r\n\n";
  file.resize(file.size() - 3);  // the last line has no end
  for (const size_t piece_bytes : {4, 7, 1000, 1 << 20}) {
    EXPECT_THAT(documents_of({file, "", "{\"text\": \"c\"}"}, DocumentRule::jsonl, piece_bytes),
                ElementsAre("a\nb \u00e9", "", words, "c"));
  }
}

TEST(Documents, SayWhichLineIsNoJsonOfTheKey) {
  TemporaryFolder folder;
  const auto error = [&](const std::string& text, const std::string& key = "text") {
    write_bytes(folder / "x.jsonl", text);
    return input_error_of([&] {
      DocumentReader reader({folder / "x.jsonl"}, DocumentRule::jsonl, 100, key);
      for (TextPiece piece; reader.next(piece);) {
      }
    });
  };
  const std::string good = "{\"text\": \"a\", \"body\": \"b\"}\n";
  EXPECT_EQ(error(good + good), "");
  EXPECT_EQ(error(good, "body"), "");
  EXPECT_THAT(error(good + "\n{\"text\": 5}"), HasSubstr("x.jsonl:3: the object has no text under the key 'text'"));
  EXPECT_THAT(error(good, "content"),
              HasSubstr("x.jsonl:1: the object has no text under the key 'content'; --json-key"));
  EXPECT_THAT(error(good + "plain\n"), HasSubstr("x.jsonl:2 is not JSON"));
  EXPECT_THAT(error("[1]"), HasSubstr("x.jsonl:1 is not a JSON object"));
}

// What is no JSON Lines would else be read into memory whole, whatever its size.
TEST(Documents, NameLinesThatAreTooLongAndBytesThatAreNoText) {
  TemporaryFolder folder;
  const auto error = [&](const std::string& text) {
    write_bytes(folder / "x.jsonl", text);
    return input_error_of([&] {
      DocumentReader reader({folder / "x.jsonl"}, DocumentRule::jsonl, 100, "text", 3 << 20);
      for (TextPiece piece; reader.next(piece);) {
      }
      EXPECT_EQ(reader.bytes(), int64_t(text.size()));
    });
  };
  const auto of_bytes = [](size_t bytes) { return "{\"text\": \"" + std::string(bytes - 12, 'a') + "\"}"; };
  const std::string good = of_bytes(20) + "\n";
  EXPECT_EQ(error(good + of_bytes(3 << 20) + "\n" + of_bytes(3 << 20)), "");
  EXPECT_THAT(error(good + of_bytes((3 << 20) + 1) + "\n" + good), HasSubstr("x.jsonl:2: a line of more than 3145728"));
  EXPECT_THAT(error(of_bytes((3 << 20) + 1)), HasSubstr("the file seems to be no JSON Lines"));
  EXPECT_THAT(error(" [" + of_bytes(9 << 20) + "]"), HasSubstr("x.jsonl:1: a line of more than 3145728 bytes: the file "
                                                               "seems to be one JSON array"));
  EXPECT_THAT(error(good + "{\"text\": \"caf\xe9\"}\n"),
              HasSubstr("x.jsonl:2 is not JSON: 1 of its bytes are not UTF-8, from byte 13 on"));
}

TEST(Documents, RefuseCompressedText) {
  TemporaryFolder folder;
  const std::pair<std::string, std::string> files[] = {
      {"\x1f\x8b\x08", "zcat "}, {"\x28\xb5\x2f\xfd", "zstdcat "}, {std::string("\xfd\x37zXZ\0", 6), "xzcat "}};
  for (const auto& [magic, advice] : files)
    for (const DocumentRule rule : {DocumentRule::file, DocumentRule::jsonl}) {
      write_bytes(folder / "x", magic + "more");
      EXPECT_THAT(input_error_of([&] {
                    TextPiece piece;
                    DocumentReader({folder / "x"}, rule, 100).next(piece);
                  }),
                  HasSubstr(advice + (folder / "x") + " | keel tokenize -"));
    }
}

}  // namespace
}  // namespace keel::data
