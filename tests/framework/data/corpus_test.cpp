#include "framework/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sentencepiece_trainer.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "framework/data/token_file.h"
#include "framework/data/tokenizer.h"
#include "tests/support/disk.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"

namespace keel::data {
namespace {

using namespace keel::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

CorpusReports make(const CorpusOptions& options) {
  return make_corpus(options, [](const CorpusProgress&) {});
}

std::vector<std::string> documents_of(const std::string& prefix) {
  const TokenFile file(prefix);
  const auto tokenizer = tokenizer_of(file.notes().value());
  std::vector<std::string> documents;
  for (int64_t d = 0; d < file.documents(); ++d) {
    const int64_t begin = file.document_start(d);
    std::vector<int32_t> ids(size_t(file.document_start(d + 1) - begin));
    file.read(begin, ids);
    EXPECT_EQ(ids.back(), tokenizer->end_of_document());
    documents.emplace_back();
    tokenizer->decode(ids, documents.back());
  }
  return documents;
}

// Lines that all differ, so that text in two places shows.
std::string numbered_lines(int count) {
  std::mt19937 random(9);
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "line " + std::to_string(i) + " of";
    for (int words = int(random() % 12); words > 0; --words) {
      text += ' ';
      for (uint32_t word = random() % 200 + 20; word > 0; word /= 3) text += char('a' + word % 26);
    }
    text += "\n";
  }
  return text;
}

TEST(Corpus, EveryDocumentIsFollowedByItsEnd) {
  TemporaryFolder folder;
  write_bytes(folder / "a.txt", "ab\n\ncd\xff");
  write_bytes(folder / "b.txt", "e");
  const auto reports = make({{folder / "a.txt", folder / "b.txt"}, folder / "new/folder/out", DocumentRule::blank});
  const TokenFile file(folder / "new/folder/out");
  std::vector<int32_t> ids(size_t(file.tokens()));
  file.read(0, ids);
  EXPECT_THAT(ids, ElementsAre('a', 'b', '\n', '\n', 256, 'c', 'd', 255, 256, 'e', 256));
  EXPECT_EQ(file.type(), TokenType::uint16);
  EXPECT_EQ(reports.training.tokens, 11);
  EXPECT_EQ(reports.training.documents, 3);
  EXPECT_EQ(reports.training.bytes, 8);
  EXPECT_EQ(reports.invalid_bytes, 1);
  EXPECT_FALSE(reports.valid);
  ASSERT_TRUE(file.notes());
  EXPECT_EQ(file.notes()->bytes, 8);
  EXPECT_EQ(file.notes()->vocabulary, 257);
}

// Tokenizers that put a space in front of a text put none within one: long documents come in pieces of 1 KiB here.
TEST(Corpus, PiecesGiveTheIdsOfTheWholeText) {
  TemporaryFolder folder;
  const std::string text = numbered_lines(2000);
  write_bytes(folder / "text.txt", text);
  ASSERT_TRUE(sentencepiece::SentencePieceTrainer::Train({{"input", folder / "text.txt"},
                                                          {"model_prefix", folder / "dummy"},
                                                          {"model_type", "bpe"},
                                                          {"vocab_size", "320"},
                                                          {"byte_fallback", "true"},
                                                          {"normalization_rule_name", "identity"},
                                                          {"remove_extra_whitespaces", "false"},
                                                          {"minloglevel", "2"}})
                  .ok());
  for (const std::string& model : {folder / "dummy.model", testing::golden_file("tokenizers/gpt2/tokenizer.json")}) {
    make({.texts = {folder / "text.txt"}, .prefix = folder / "out", .valid = 0.03, .model = model});
    const TokenFile file(folder / "out");
    const auto tokenizer = tokenizer_of(file.notes().value());
    ASSERT_GT(file.documents(), 1);
    for (int64_t d = 0; d < file.documents(); ++d) {
      std::vector<int32_t> ids(size_t(file.document_start(d + 1) - file.document_start(d))), whole;
      file.read(file.document_start(d), ids);
      std::string document;
      tokenizer->decode(ids, document);
      ASSERT_EQ(document[0], ' ');
      document.erase(0, 1);
      ASSERT_NE(text.find(document), text.npos) << model << ": document " << d << " of " << document.size();
      tokenizer->begin_document(whole);
      tokenizer->encode(document, whole);
      whole.push_back(tokenizer->end_of_document());
      EXPECT_EQ(ids, whole) << model;
    }
  }
}

TEST(HeldOut, TakesOnePieceOfEveryStretch) {
  for (double share : {0.5, 0.3, 0.1, 0.01, 1.0 / 3}) {
    const HeldOut held_out(share);
    int64_t taken = 0;
    std::set<int64_t> places;
    for (int64_t i = 0; i < 10000; ++i) {
      if (!held_out(i)) continue;
      ++taken;
      places.insert(i % int64_t(1 / share));
      EXPECT_LE(std::abs(double(taken) - double(i + 1) * share), 1 + 1e-9) << share << " at " << i;
    }
    EXPECT_NEAR(double(taken), 10000 * share, 1) << share;
    EXPECT_GT(places.size(), 1u);  // not every tenth
  }
  for (int64_t i = 0; i < 1000; ++i) EXPECT_FALSE(HeldOut(0)(i));
}

TEST(Corpus, HeldOutTextComesFromAllOverAndNeverTwice) {
  TemporaryFolder folder;
  const std::string text = numbered_lines(20000);
  write_bytes(folder / "x.txt", text);
  for (DocumentRule rule : {DocumentRule::file, DocumentRule::line}) {
    const auto reports = make({{folder / "x.txt"}, folder / "out", rule, 0.05});
    ASSERT_TRUE(reports.valid);
    EXPECT_EQ(reports.training.bytes + reports.valid->bytes, int64_t(text.size()));
    EXPECT_NEAR(double(reports.valid->bytes) / double(text.size()), 0.05, 0.004);
    std::string training, valid;
    for (const std::string& document : documents_of(folder / "out")) training += document;
    const auto held_out = documents_of(folder / "out-valid");
    EXPECT_GE(held_out.size(), 30u);
    std::set<size_t> tenths;
    size_t last = 0;
    for (const std::string& document : held_out) {
      const size_t at = text.find(document);
      ASSERT_NE(at, text.npos);
      EXPECT_GE(at, last);
      EXPECT_EQ(document.back(), '\n');
      tenths.insert(at * 10 / text.size());
      training.insert(at, document);  // put back, it is the text again: nothing is missing and nothing is double
      last = at + document.size();
    }
    EXPECT_EQ(training, text);
    EXPECT_EQ(tenths.size(), 10u);
  }
}

TEST(Corpus, IsTheSameWhateverTheThreads) {
  TemporaryFolder folder;
  write_bytes(folder / "x.txt", numbered_lines(20000));
  const int threads = omp_get_max_threads();
  for (int count : {1, 3}) {
    omp_set_num_threads(count);
    make({{folder / "x.txt"}, folder / std::to_string(count), DocumentRule::file, 0.05, 400});
  }
  omp_set_num_threads(threads);
  for (const char* ending : {".bin", ".idx", ".model", "-valid.bin", "-valid.idx"})
    EXPECT_EQ(read_bytes(folder / (std::string("1") + ending)), read_bytes(folder / (std::string("3") + ending)))
        << ending;
}

TEST(Corpus, WithSentencePieceTheModelLiesBesideTheTokens) {
  TemporaryFolder folder;
  const std::string text = numbered_lines(3000);
  write_bytes(folder / "x.txt", text);
  const auto reports = make({{folder / "x.txt"}, folder / "a/out", DocumentRule::file, 0.1, 400});
  EXPECT_EQ(reports.vocabulary, 400);
  EXPECT_LT(reports.training.tokens * 2, reports.training.bytes);
  EXPECT_EQ(TokenFile(folder / "a/out-valid").notes()->model, "out.model");
  std::filesystem::rename(folder / "a", folder / "b");  // paths are relative
  std::string training;
  for (const std::string& document : documents_of(folder / "b/out")) training += document;
  EXPECT_EQ(int64_t(training.size()), reports.training.bytes);
  // A given model makes the same tokens.
  make({{folder / "x.txt"}, folder / "c/again", DocumentRule::file, 0.1, 0, folder / "b/out.model"});
  EXPECT_EQ(read_bytes(folder / "c/again.bin"), read_bytes(folder / "b/out.bin"));
  EXPECT_EQ(read_bytes(folder / "c/again.model"), read_bytes(folder / "b/out.model"));
  // A model in the place it would be copied to.
  make({{folder / "x.txt"}, folder / "c/again", DocumentRule::file, 0.1, 0, folder / "c/again.model"});
  EXPECT_EQ(read_bytes(folder / "c/again.bin"), read_bytes(folder / "b/out.bin"));
}

TEST(Corpus, SaysWhatIsWrong) {
  TemporaryFolder folder;
  write_bytes(folder / "x.txt", "a short text\n");
  write_bytes(folder / "empty.txt", "");
  const std::string x = folder / "x.txt";
  auto error = [&](const CorpusOptions& options) { return input_error_of([&] { make(options); }); };
  EXPECT_THAT(error({{}, folder / "o"}), HasSubstr("no text"));
  EXPECT_THAT(error({{x}, ""}), HasSubstr("is no prefix"));
  EXPECT_THAT(error({{x}, folder / "o/"}), HasSubstr("is no prefix"));
  EXPECT_THAT(error({{x}, folder / "o", DocumentRule::file, 0.6}), HasSubstr("must be from 0 to 0.5"));
  EXPECT_THAT(error({{x}, folder / "o", DocumentRule::file, -0.1}), HasSubstr("must be from 0 to 0.5"));
  EXPECT_THAT(error({{x}, folder / "o", DocumentRule::file, std::nan("")}), HasSubstr("must be from 0 to 0.5"));
  EXPECT_THAT(error({{x}, folder / "o", DocumentRule::file, 0.01}), HasSubstr("13 bytes leaves nothing to "));
  EXPECT_THAT(error({{folder / "empty.txt"}, folder / "o"}), HasSubstr("no text to tokenize"));
  EXPECT_THAT(error({{folder / "none"}, folder / "o"}), HasSubstr("No such file"));
  EXPECT_THAT(error({{"-"}, folder / "o", DocumentRule::file, 0, 400}), HasSubstr("reads the text twice"));
  EXPECT_THAT(error({{x}, folder / "o", DocumentRule::file, 0, 400, "m.model"}), HasSubstr("not both"));
  EXPECT_THAT(error({{x}, folder / "o", DocumentRule::file, 0, 0, "m.model"}), HasSubstr("m.model: not a Sentence"));
  EXPECT_THAT(error({{x}, folder / "x.txt/o"}), HasSubstr("x.txt"));
  EXPECT_THAT(error({.texts = {x}, .prefix = folder / "o", .json_key = "body"}), HasSubstr("--documents jsonl"));
  EXPECT_EQ(files_in(folder.path()), (std::set<std::string>{"x.txt", "empty.txt"}));
}

// What it reads stays, and so does what others made.
TEST(Corpus, ReplacesNothingOfOthers) {
  TemporaryFolder folder;
  const std::string text = numbered_lines(3000);
  std::filesystem::create_directory(folder / "hf");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(testing::golden_file("tokenizers/gpt2/") + name, folder / "hf/" + name);
  const std::string json = folder / "hf/tokenizer.json", kept = read_bytes(json);
  for (const char* name : {"a.json", "a.bin", "a.idx", "a-valid.json", "a.model", "a.tokenizer.json"}) {
    const std::string path = folder / name;
    write_bytes(path, text);
    CorpusOptions options{.texts = {path}, .prefix = folder / "a", .valid = 0.1};
    if (path.ends_with(".model")) options.sentencepiece = 400;
    if (path.ends_with(".tokenizer.json")) options.model = json;
    EXPECT_THAT(input_error_of([&] { make(options); }),
                HasSubstr("a" + path.substr(path.rfind("/a") + 2) + " would replace this text"));
    EXPECT_EQ(read_bytes(path), text);
    // As somebody else's, too.
    write_bytes(folder / "text.txt", text);
    options.texts = {folder / "text.txt"};
    EXPECT_THAT(input_error_of([&] { make(options); }), HasSubstr(path + ": is there, and "));
    EXPECT_EQ(read_bytes(path), text);
    std::filesystem::remove(path);
  }
  EXPECT_THAT(
      input_error_of([&] { make({.texts = {folder / "text.txt"}, .prefix = folder / "hf/tokenizer", .model = json}); }),
      HasSubstr("would replace this tokenizer"));
  EXPECT_EQ(read_bytes(json), kept);
  EXPECT_EQ(files_in(folder.path()), (std::set<std::string>{"hf", "text.txt"}));
  // A folder with a tokenizer is one.
  make({.texts = {folder / "text.txt"}, .prefix = folder / "b", .model = folder / "hf"});
  EXPECT_EQ(read_bytes(folder / "b.tokenizer.json"), kept);
}

// Where the index finds no room at the very end, the older tokens are there as before, with their tokenizer.
TEST(Corpus, AFullDiskLeavesEverythingAsItWas) {
  TemporaryFolder folder;
  write_bytes(folder / "x.txt", numbered_lines(3000));
  make({.texts = {folder / "x.txt"}, .prefix = folder / "out", .valid = 0.1, .sentencepiece = 400});
  std::map<std::string, std::string> before;
  for (const std::string& name : files_in(folder.path())) before[name] = read_bytes(folder / name);
  TemporaryFolder other;
  write_bytes(
      other / "short.txt", numbered_lines(3000) + [] {
        std::string lines;
        for (int i = 0; i < 20000; ++i) lines += "a\n";
        return lines;
      }());
  {
    const testing::FileSizeLimit limit(400000);
    const std::string message = input_error_of([&] {
      make({{other / "short.txt"}, folder / "out", DocumentRule::line, 0.1, 380});
    });
    EXPECT_THAT(message, AllOf(StartsWith("internal: "), HasSubstr("out.idx"), HasSubstr("ulimit -f")));
  }
  std::map<std::string, std::string> after;
  for (const std::string& name : files_in(folder.path())) after[name] = read_bytes(folder / name);
  EXPECT_EQ(after, before);
}

// A tokenizer of the same size made anew is not the one that made the tokens.
TEST(Corpus, TokensKnowTheirTokenizer) {
  TemporaryFolder folder;
  write_bytes(folder / "x.txt", numbered_lines(3000));
  write_bytes(folder / "y.txt", numbered_lines(2000) + "other words");
  for (const char* name : {"x", "y"})
    make({.texts = {folder / std::string(name) + ".txt"}, .prefix = folder / name, .sentencepiece = 400});
  EXPECT_EQ(tokenizer_of(*notes_of(folder / "x"))->vocabulary(), 400);
  std::filesystem::copy_file(folder / "y.model", folder / "x.model", std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(input_error_of([&] { tokenizer_of(*notes_of(folder / "x")); }), HasSubstr("not the file that made"));
}

TEST(Corpus, ReadsJsonLines) {
  TemporaryFolder folder;
  write_bytes(folder / "x.jsonl", "{\"body\": \"one\"}\n{\"body\": \"two\\n\"}\n");
  const auto reports = make(
      {.texts = {folder / "x.jsonl"}, .prefix = folder / "out", .documents = DocumentRule::jsonl, .json_key = "body"});
  EXPECT_EQ(reports.training.bytes, 7);
  EXPECT_THAT(documents_of(folder / "out"), ElementsAre("one", "two\n"));
  EXPECT_EQ(unread_json({.texts = {folder / "x.jsonl"}, .prefix = "", .json_key = "body"}), folder / "x.jsonl");
  EXPECT_EQ(unread_json({.texts = {folder / "x.jsonl"}, .prefix = ""}), "");
  EXPECT_EQ(unread_json({.texts = {folder / "x.jsonl"}, .prefix = "", .documents = DocumentRule::jsonl}), "");
}

}  // namespace
}  // namespace keel::data
