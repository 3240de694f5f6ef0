#include "framework/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <random>

#include "framework/base/utf8.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::data {
namespace {

using namespace keel::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// English-like lines with indentation, blank lines, digits and some letters beyond ASCII.
std::vector<std::string> sample_texts() {
  const char* words[] = {"the",  "rain", "in", "Spain",   "stays", "mainly", "on",        "a",  "plain;", "water",
                         "café", "año",  "42", "running", "ran",   "runner", "(quoted).", "he", "said"};
  std::mt19937 random(4);
  std::vector<std::string> texts(4);
  for (std::string& text : texts)
    for (int i = 0; i < 3000; ++i) {
      text += words[random() % std::size(words)];
      text += random() % 12 != 0 ? " " : random() % 3 != 0 ? "\n    " : "\n\n";
    }
  return texts;
}

const std::string& model_path() {
  static const TemporaryFolder folder;
  static const std::string path = [] {
    write_bytes(folder / "test.model", train_sentencepiece(sample_texts(), 400));
    return folder / "test.model";
  }();
  return path;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::string round_trip(const Tokenizer& tokenizer, std::string_view text) {
  std::string out;
  tokenizer.decode(encode(tokenizer, text), out);
  return out;
}

std::vector<std::string> hard_texts() {
  std::vector<std::string> texts = {
      "",
      " ",
      "   leading and trailing   ",
      "\n\n\ttabs\r\n and\v\f controls",
      std::string("nul\0inside", 10),
      "\xE2\x96\x81 the mark \xE2\x96\x81\xE2\x96\x81 itself",
      "\xE2\x96\x85 reserved",
      "<s></s><unk><0x41> \xE2\x81\x87",
      "emoji \xF0\x9F\x98\x80 and \xE4\xB8\xAD\xE6\x96\x87",
      "e\xCC\x81 stays two, \xC3\xA9 one, \xEF\xAC\x81 a ligature",
      "\xFF\xFE broken \xC3( \xE2\x28\xA1 \xED\xA0\x80 \xC0\xAF \xF4\x90\x80\x80 \xE2\x96",
      std::string(5000, ' '),
      std::string(5000, 'x')};
  std::mt19937 random(6);
  for (int i = 0; i < 50; ++i) {
    std::string bytes(random() % 300, ' ');
    for (char& c : bytes) c = random() % 3 == 0 ? ' ' : char(random());
    texts.push_back(bytes);
  }
  for (const std::string& text : sample_texts()) texts.push_back(text);
  return texts;
}

// A model made elsewhere may have an id that begins a sentence; those trained here have none.
TEST(Tokenizer, DocumentsBeginWithTheModelsOwnStart) {
  const TemporaryFolder folder;
  write_bytes(folder / "text.txt", sample_texts()[0]);
  ASSERT_TRUE(sentencepiece::SentencePieceTrainer::Train({{"input", folder / "text.txt"},
                                                          {"model_prefix", folder / "bos"},
                                                          {"model_type", "bpe"},
                                                          {"vocab_size", "320"},
                                                          {"byte_fallback", "true"},
                                                          {"bos_id", "2"},
                                                          {"eos_id", "1"},
                                                          {"unk_id", "0"},
                                                          {"minloglevel", "2"}})
                  .ok());
  std::vector<int32_t> ids;
  const auto tokenizer = sentencepiece_tokenizer(folder / "bos.model");
  tokenizer->begin_document(ids);
  EXPECT_THAT(ids, ElementsAre(2));
  std::string text;
  tokenizer->decode(ids, text);
  EXPECT_EQ(text, "");
  for (const auto& other : {byte_tokenizer(), sentencepiece_tokenizer(model_path())}) {
    ids.clear();
    other->begin_document(ids);
    EXPECT_TRUE(ids.empty());
  }
}

TEST(Tokenizer, DecodingWhatWasEncodedGivesEveryByteBack) {
  for (const auto& tokenizer : {byte_tokenizer(), sentencepiece_tokenizer(model_path())})
    for (const std::string& text : hard_texts()) {
      EXPECT_EQ(round_trip(*tokenizer, text), text) << tokenizer->kind();
      for (int32_t id : encode(*tokenizer, text)) {
        ASSERT_TRUE(id >= 0 && id < tokenizer->vocabulary());
        ASSERT_NE(id, tokenizer->end_of_document());
      }
    }
}

TEST(Tokenizer, BytesAreTheirOwnIds) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer->vocabulary(), 257);
  EXPECT_EQ(tokenizer->end_of_document(), 256);
  EXPECT_THAT(encode(*tokenizer, "a\xff"), ElementsAre(97, 255));
  std::string text = "x";
  tokenizer->decode(std::vector<int32_t>{65, 256, 66}, text);
  EXPECT_EQ(text, "xAB");
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{257}, text), Error);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}, text), Error);
}

TEST(SentencePiece, AgreesWithTheLibraryOnPlainText) {
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load(model_path()).ok());
  const auto tokenizer = sentencepiece_tokenizer(model_path());
  EXPECT_EQ(tokenizer->vocabulary(), 400);
  for (const std::string& text : hard_texts()) {
    if (count_invalid_bytes(text) > 0 || text.find("\xE2\x96\x81") != text.npos) continue;
    std::vector<int> ids;
    ASSERT_TRUE(library.Encode(text, &ids).ok());
    EXPECT_EQ(encode(*tokenizer, text), std::vector<int32_t>(ids.begin(), ids.end()));
    EXPECT_EQ(encode(*tokenizer, text), std::vector<int32_t>(ids.begin(), ids.end())) << "the second time";
  }
}

TEST(SentencePiece, TrainsTheSameModelAgainAndCompresses) {
  EXPECT_EQ(train_sentencepiece(sample_texts(), 400), read_bytes(model_path()));
  const std::string text = sample_texts()[0];
  EXPECT_LT(encode(*sentencepiece_tokenizer(model_path()), text).size() * 2, text.size());
}

// Each mark costs itself, not the rest of the text: else this takes minutes.
TEST(SentencePiece, ManyMarksOfItsOwnForSpaces) {
  std::string text;
  for (int i = 0; i < 1 << 20; ++i) text += "\xE2\x96\x81";
  const auto tokenizer = sentencepiece_tokenizer(model_path());
  EXPECT_EQ(encode(*tokenizer, text).size(), text.size());
  EXPECT_EQ(round_trip(*tokenizer, text), text);
}

TEST(SentencePiece, RefusesWhatItCannotDo) {
  TemporaryFolder folder;
  EXPECT_THAT(input_error_of([&] { train_sentencepiece(sample_texts(), 100); }), HasSubstr("100 is too small"));
  EXPECT_THAT(input_error_of([&] { train_sentencepiece(sample_texts(), 1000000); }), HasSubstr("cannot train 1000000"));
  EXPECT_THAT(input_error_of([&] { sentencepiece_tokenizer(folder / "no.model"); }), HasSubstr("no.model"));
  write_bytes(folder / "x.model", "not a model");
  EXPECT_THAT(input_error_of([&] { sentencepiece_tokenizer(folder / "x.model"); }), HasSubstr("not a SentencePiece"));
}

TEST(TokenizerOf, OpensWhatTheNotesName) {
  TokenNotes notes{.tokenizer = "bytes", .vocabulary = 257, .end_of_document = 256};
  EXPECT_EQ(tokenizer_of(notes)->kind(), "bytes");
  notes.vocabulary = 300;
  EXPECT_THAT(input_error_of([&] { tokenizer_of(notes); }), HasSubstr("made with 300 ids"));
  notes.tokenizer = "words";
  EXPECT_THAT(input_error_of([&] { tokenizer_of(notes); }), HasSubstr("'words' is unknown"));
  const std::filesystem::path path = model_path();
  notes = {.tokenizer = "sentencepiece",
           .model = path.filename(),
           .vocabulary = 400,
           .end_of_document = 1,
           .path = path.parent_path() / "test.json"};
  EXPECT_EQ(tokenizer_of(notes)->vocabulary(), 400);  // older notes know no checksum
  notes.model_crc32c = tokenizer_crc32c(path);
  EXPECT_EQ(tokenizer_of(notes)->vocabulary(), 400);
  *notes.model_crc32c ^= 1;
  EXPECT_THAT(input_error_of([&] { tokenizer_of(notes); }),
              HasSubstr("test.model: not the file that made the tokens of " + notes.path));
}

}  // namespace
}  // namespace keel::data
