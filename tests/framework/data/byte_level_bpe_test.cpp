// tokenizer.json against ids that Hugging Face tokenizers computed (tests/golden/families.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/base/error.h"
#include "framework/data/corpus.h"
#include "framework/data/dataset.h"
#include "framework/data/tokenizer.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"

namespace keel::data {
namespace {

using namespace keel::testing;
using nlohmann::json;
using ::testing::HasSubstr;

const std::string kFolder = testing::golden_file("tokenizers/");

json read_json(const std::string& path) {
  return json::parse(std::ifstream(path));
}

class ByteLevelBpe : public ::testing::TestWithParam<const char*> {};

TEST_P(ByteLevelBpe, IdsAreTheOriginals) {
  const auto tokenizer = tokenizer_at(kFolder + GetParam());
  const json expected = read_json(kFolder + GetParam() + "/expected.json");
  for (const json& text : expected["texts"]) {
    std::vector<int32_t> ids;
    tokenizer->encode(text["text"].get<std::string>(), ids);
    EXPECT_EQ(ids, text["ids"].get<std::vector<int32_t>>()) << text["text"];
  }
  const auto start = tokenizer->start_of_text();
  EXPECT_EQ(start ? std::vector<int32_t>{*start} : std::vector<int32_t>{},
            expected["start"].get<std::vector<int32_t>>());
  EXPECT_EQ(tokenizer->vocabulary(), 310);
  EXPECT_EQ(tokenizer->end_of_document(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, ByteLevelBpe, ::testing::Values("gpt2", "llama3", "qwen3", "olmo2"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ByteLevelBpeText, KeepsEveryByte) {
  const auto tokenizer = tokenizer_at(kFolder + "llama3");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += char(i * 89 >> (i % 3));
  text += std::string(100'000, 'a') + "norm";
  std::vector<int32_t> ids;
  tokenizer->encode(text, ids);
  std::string back;
  tokenizer->decode(ids, back);
  EXPECT_EQ(back, text);
  back.clear();
  tokenizer->decode(std::vector<int32_t>{1, ids[0], 0}, back);  // special tokens are no text
  EXPECT_EQ(back.size(), 1u);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{310}, back), Error);
}

json starting_with(const json& id) {
  json part = json::parse(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
                              "special_tokens": {"<s>": {"ids": []}}})");
  part["special_tokens"]["<s>"]["ids"].push_back(id);
  return part;
}

// What is not known is refused, by name.
TEST(ByteLevelBpeText, RefusesOtherTokenizers) {
  const TemporaryFolder folder;
  const json good = read_json(kFolder + "qwen3/tokenizer.json");
  write_bytes(folder / "tokenizer_config.json", R"({"eos_token": {"content": "<|end|>"}})");
  const auto refusal = [&](const std::function<void(json&)>& change) -> std::string {
    json bad = good;
    change(bad);
    write_bytes(folder / "tokenizer.json", bad.dump());
    try {
      tokenizer_at(folder / "tokenizer.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal([](json&) {}), "accepted");
  EXPECT_THAT(refusal([](json& j) { j["model"]["type"] = "Unigram"; }), HasSubstr("the model Unigram is not known"));
  EXPECT_THAT(refusal([](json& j) { j["normalizer"]["type"] = "Lowercase"; }), HasSubstr("Lowercase"));
  EXPECT_THAT(refusal([](json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}}; }), HasSubstr("Metaspace"));
  EXPECT_THAT(refusal([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }),
              HasSubstr("pattern '(a' is not understood"));
  const auto split = [](json& j) -> json& { return j["pre_tokenizer"]["pretokenizers"][0]; };
  EXPECT_THAT(refusal([&](json& j) { split(j)["behavior"] = "Removed"; }), HasSubstr("inverted Removed are known"));
  EXPECT_THAT(refusal([&](json& j) { split(j)["invert"] = true; }), HasSubstr("inverted Removed are known"));
  EXPECT_THAT(refusal([](json& j) {
                std::swap(j["pre_tokenizer"]["pretokenizers"][0], j["pre_tokenizer"]["pretokenizers"][1]);
              }),
              HasSubstr("a Split behind ByteLevel"));
  EXPECT_THAT(refusal([](json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }),
              HasSubstr("a space before every piece"));
  EXPECT_THAT(refusal([](json& j) { j["added_tokens"][1]["normalized"] = true; }),
              HasSubstr("\"<|start|>\" is looked for in normalized text"));
  EXPECT_EQ(refusal([](json& j) {
              j["added_tokens"][1]["normalized"] = true;
              j["normalizer"] = nullptr;
            }),
            "accepted");
  EXPECT_THAT(refusal([](json& j) {
                j["post_processor"] = {{"type", "BertProcessing"}};
              }),
              HasSubstr("the post-processor BertProcessing is not known"));
  EXPECT_EQ(refusal([](json& j) {
              j["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}}}};
            }),
            "accepted");
  EXPECT_THAT(refusal([](json& j) { j["model"]["vocab"].erase("a"); }), HasSubstr("no symbol for byte 97"));
  EXPECT_THAT(refusal([](json& j) { j["model"]["merges"][0] = "a zzz"; }), HasSubstr("zzz"));
  EXPECT_THAT(refusal([](json& j) {
                j["model"]["vocab"]["\u4e2d"] = 100'000;
                j["model"]["vocab"]["\u4e2da"] = 100'001;
                j["model"]["merges"][0] = "\u4e2d a";
              }),
              HasSubstr("no symbol of bytes"));
  EXPECT_THAT(refusal([](json& j) { j["model"].erase("merges"); }), HasSubstr("merges"));
  EXPECT_THAT(refusal([](json& j) { j["model"]["vocab"]["a"] = -1; }), HasSubstr("the id of \"a\" is -1"));
  for (const json& id : {json(-1), json(4294967296), json(2147483647), json(1.5), json("7"), json(nullptr)}) {
    EXPECT_THAT(refusal([&](json& j) { j["model"]["vocab"]["a"] = id; }), HasSubstr("the id of \"a\" is " + id.dump()));
    EXPECT_THAT(refusal([&](json& j) { j["added_tokens"][0]["id"] = id; }), HasSubstr("the id of \"<|end|>\" is "));
    EXPECT_THAT(refusal([&](json& j) { j["post_processor"] = starting_with(id); }), HasSubstr("the id of \"<s>\" is "));
  }
  EXPECT_THAT(refusal([&](json& j) { j["post_processor"] = starting_with(300); }), HasSubstr("is no added token's"));
  EXPECT_THAT(refusal([&](json& j) {
                for (int i = 0; i < 100; ++i) j["decoder"] = json{{"inner", j["decoder"]}};
              }),
              HasSubstr("nests more than 64 deep"));
  write_bytes(folder / "tokenizer_config.json", R"({"eos_token": "<|fin|>"})");
  EXPECT_THAT(refusal([](json&) {}), HasSubstr("eos_token is \"<|fin|>\""));
}

TEST(ByteLevelBpeText, MakesTokenFiles) {
  const TemporaryFolder folder;
  write_bytes(folder / "text.txt", "the norm of a query and of its key");
  const auto reports = make_corpus(
      {.texts = {folder / "text.txt"}, .prefix = folder / "corpus", .model = kFolder + "qwen3/tokenizer.json"},
      [](const CorpusProgress&) {});
  EXPECT_EQ(reports.vocabulary, 310);
  const auto notes = read_notes(folder / "corpus");
  EXPECT_EQ(notes->tokenizer, "byte_level_bpe");
  const auto tokenizer = tokenizer_of(*notes);
  std::vector<int32_t> ids;
  tokenizer->encode("the norm of a query and of its key", ids);
  EXPECT_EQ(reports.training.tokens, int64_t(ids.size()) + 1);
  EXPECT_FALSE(notes->start_of_text);
}

// As the template of tokenizer.json has it: id 1 begins every document, held-out ones too.
TEST(ByteLevelBpeText, DocumentsBeginWithTheStartOfText) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 60; ++i) text += "the norm of query " + std::to_string(i) + "\n";
  write_bytes(folder / "text.txt", text);
  const auto reports = make_corpus({.texts = {folder / "text.txt"},
                                    .prefix = folder / "corpus",
                                    .documents = DocumentRule::line,
                                    .valid = 0.1,
                                    .model = kFolder + "llama3/tokenizer.json"},
                                   [](const CorpusProgress&) {});
  EXPECT_EQ(reports.training.bytes + reports.valid->bytes, int64_t(text.size())) << "bytes of text alone";
  for (const char* name : {"corpus", "corpus-valid"}) {
    const TokenFile file(folder / name);
    EXPECT_EQ(file.notes()->start_of_text, 1);
    EXPECT_EQ(file.notes()->tokens, file.tokens());
    const auto tokenizer = tokenizer_of(*file.notes());
    for (int64_t document = 0; document < file.documents(); ++document) {
      std::vector<int32_t> ids(size_t(file.document_start(document + 1) - file.document_start(document))), expected;
      file.read(file.document_start(document), ids);
      std::string line;
      tokenizer->decode(ids, line);
      EXPECT_NE(text.find(line), text.npos);
      tokenizer->begin_document(expected);
      EXPECT_EQ(expected, std::vector<int32_t>{1});
      tokenizer->encode(line, expected);
      expected.push_back(tokenizer->end_of_document());
      EXPECT_EQ(ids, expected);
    }
  }
  // The mask: a document's first token, its start, is nobody's target, and positions count from it.
  const Dataset dataset({{folder / "corpus"}}, {.T = 32, .vocabulary = 310, .document_mask = true});
  std::vector<int32_t> tokens(32), targets(32), positions(32);
  const SampleId row{0, 0, 1};
  dataset.fill(std::span(&row, 1), {tokens, targets, positions});
  for (size_t t = 1; t < 32; ++t) {
    EXPECT_EQ(tokens[t] == 1, positions[t] == 0);
    EXPECT_EQ(tokens[t] == 1, targets[t - 1] == -1);
  }
}

// Token files of before have no such note, and documents without a start: so have prompts of what was trained on them.
TEST(ByteLevelBpeText, OlderNotesAreFollowed) {
  const TemporaryFolder folder;
  write_bytes(folder / "text.txt", "the norm of a query");
  make_corpus({.texts = {folder / "text.txt"}, .prefix = folder / "corpus", .model = kFolder + "llama3/tokenizer.json"},
              [](const CorpusProgress&) {});
  json notes = read_json(folder / "corpus.json");
  notes["start_of_text"] = 2;
  write_bytes(folder / "corpus.json", notes.dump());
  EXPECT_THAT(input_error_of([&] { tokenizer_of(*read_notes(folder / "corpus")); }),
              HasSubstr("begin with id 2, those of the tokenizer with 1"));
  notes.erase("start_of_text");
  write_bytes(folder / "corpus.json", notes.dump());
  EXPECT_FALSE(tokenizer_of(*TokenFile(folder / "corpus").notes())->start_of_text());
}

}  // namespace
}  // namespace keel::data
