// tokenizer.json against ids that Hugging Face tokenizers computed (tests/golden/families.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/base/error.h"
#include "framework/data/corpus.h"
#include "framework/data/tokenizer.h"
#include "tests/framework/data/temporary_folder.h"

namespace keel::data {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kFolder = KEEL_GOLDEN "/tokenizers/";

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

INSTANTIATE_TEST_SUITE_P(All, ByteLevelBpe, ::testing::Values("gpt2", "llama3", "qwen3"),
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
  EXPECT_THAT(refusal([](json& j) { j["model"]["vocab"].erase("a"); }), HasSubstr("no symbol for byte 97"));
  EXPECT_THAT(refusal([](json& j) { j["model"]["merges"][0] = "a zzz"; }), HasSubstr("zzz"));
  EXPECT_THAT(refusal([](json& j) { j["model"].erase("merges"); }), HasSubstr("merges"));
  EXPECT_THAT(refusal([](json& j) { j["model"]["vocab"]["a"] = -1; }), HasSubstr("the id of 'a' is -1"));
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
}

}  // namespace
}  // namespace keel::data
