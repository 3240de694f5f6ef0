#include "framework/data/text_bytes.h"

#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include <random>

#include "tests/support/folder.h"

namespace keel::data {
namespace {

using namespace keel::testing;

// Lines of words of ten letters.
std::string sample_text() {
  std::mt19937 random(4);
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    for (uint32_t letters = 2 + random() % 4; letters > 0; --letters) text += char('a' + random() % 10);
    text += i % 9 == 8 ? '\n' : ' ';
  }
  return text;
}

// A model as others make them: with an id that begins a text, and a space in front of it, as its mark.
std::unique_ptr<Tokenizer> foreign_tokenizer(const TemporaryFolder& folder) {
  write_bytes(folder / "text.txt", sample_text());
  const auto status = sentencepiece::SentencePieceTrainer::Train({{"input", folder / "text.txt"},
                                                                  {"model_prefix", folder / "foreign"},
                                                                  {"model_type", "bpe"},
                                                                  {"vocab_size", "330"},
                                                                  {"byte_fallback", "true"},
                                                                  {"normalization_rule_name", "identity"},
                                                                  {"remove_extra_whitespaces", "false"},
                                                                  {"unk_id", "0"},
                                                                  {"eos_id", "1"},
                                                                  {"bos_id", "2"},
                                                                  {"minloglevel", "2"}});
  require(status.ok(), "{}", status.ToString());
  return sentencepiece_tokenizer(folder / "foreign.model");
}

// Every token of a document but its first, as a target behind the one before.
int64_t bytes_of_document(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids = {tokenizer.start_of_text().value_or(tokenizer.end_of_document())};
  tokenizer.encode(text, ids);
  ids.push_back(tokenizer.end_of_document());
  const std::span all(ids);
  return TextBytes(tokenizer).of_targets(all.first(ids.size() - 1), all.last(ids.size() - 1));
}

TEST(TextBytes, TheTokensOfADocumentHaveItsBytes) {
  const TemporaryFolder folder;
  write_bytes(folder / "own.model", train_sentencepiece(std::vector{sample_text()}, 330));
  const auto own = sentencepiece_tokenizer(folder / "own.model"), foreign = foreign_tokenizer(folder),
             bytes = byte_tokenizer();
  std::vector<int32_t> ids;
  std::string text;
  foreign->encode("rain", ids);
  foreign->decode(ids, text);
  ASSERT_EQ(text, " rain") << "the tokenizer puts a space in front";
  for (const std::string document :
       {"the rain", " two  spaces", "caf\xC3\xA9 \xF0\x9F\x98\x80\n", "\n", "\xFF\x01 odd"})
    for (const Tokenizer* tokenizer : {own.get(), foreign.get(), bytes.get()})
      EXPECT_EQ(bytes_of_document(*tokenizer, document), int64_t(document.size())) << document;
}

TEST(TextBytes, WhatIsNoTargetHasNone) {
  const TextBytes bytes(*byte_tokenizer());
  const std::vector<int32_t> tokens = {65, 66, 256, 67, 68}, targets = {66, -1, 67, 256, 300};
  EXPECT_EQ(bytes.of_targets(tokens, targets), 2);
}

}  // namespace
}  // namespace keel::data
