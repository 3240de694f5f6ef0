#include "framework/data/token_bigram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "framework/data/token_writer.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::data {
namespace {

using namespace keel::testing;

TEST(TokenBigram, WorkedByHand) {
  TokenBigram bigram(10);
  bigram.add(std::vector<int32_t>{1, 2, 1, 2, 1, 3});
  // p_1(2) = (2 + 3/10) / (6 + 3); after 1 came 2 twice and 3 once, two kinds of three.
  const double p1 = 2.3 / 9;
  EXPECT_DOUBLE_EQ(bigram.probability(1, 2), (2 + 2 * p1) / (3 + 2));
  EXPECT_DOUBLE_EQ(bigram.probability(3, 2), p1) << "nothing followed 3";
  double sum = 0;
  for (int32_t next = 0; next < 10; ++next) sum += bigram.probability(2, next);
  EXPECT_NEAR(sum, 1, 1e-12);
}

// The same formula over bytes stands in ngram.h, counted by other code.
TEST(TokenBigram, OnBytesItIsTheByteBigram) {
  std::mt19937 random(3);
  std::string text;
  for (int i = 0; i < 5000; ++i) text += char(random() % 3 == 0 ? random() % 256 : random() % 7);
  NgramModel bytes(2, 1 << 30);
  bytes.add(text);
  bytes.finish();
  TokenBigram tokens(256);
  std::vector<int32_t> ids;
  for (unsigned char byte : text) ids.push_back(byte);
  tokens.add(std::span(ids).first(1234));  // in parts
  tokens.add(std::span(ids).subspan(1234));
  std::vector<double> p;
  for (int i = 0; i < 500; ++i) {
    const auto history = char(random() % 256), next = char(random() % 9);
    bytes.probabilities(std::string(1, history), uint8_t(next), p);
    EXPECT_NEAR(tokens.probability(uint8_t(history), uint8_t(next)), p[1], 1e-12);
  }
}

TEST(TokenBigram, TextsDoNotContinueOneAnother) {
  TokenBigram bigram(4);
  bigram.add(std::vector<int32_t>{0, 1});
  bigram.end_text();
  bigram.add(std::vector<int32_t>{2, 3});
  EXPECT_DOUBLE_EQ(bigram.probability(1, 2), (1 + 1.0) / 8) << "no pair (1, 2): the unigram";
}

TEST(TokenBigram, IdsOutsideTheVocabularyAreNamed) {
  TemporaryFolder folder;
  TokenWriter writer(folder / "x", 5000);
  writer.append(std::vector<int32_t>{1, 4999, 2, 3});
  writer.end_document();
  writer.finish();
  const Dataset dataset({{folder / "x", 1}}, {.T = 2, .vocabulary = 8});
  EXPECT_NE(input_error_of([&] { bigram_loss(dataset, dataset, 0); }).find("id 4999 at token 1"), std::string::npos);
  TokenBigram bigram(8);
  EXPECT_THROW(bigram.add(std::vector<int32_t>{8}), Error);
  EXPECT_THROW(bigram.add(std::vector<int32_t>{-1}), Error);
}

// Two rows of four targets, by hand.
TEST(TokenBigram, LossOverHeldOutSamples) {
  TemporaryFolder folder;
  auto write = [&](const std::string& name, const std::vector<int32_t>& ids) {
    TokenWriter writer(folder / name, 8);
    writer.append(ids);
    writer.end_document();
    writer.finish();
    return std::vector<Source>{{folder / name, 1}};
  };
  const std::vector<int32_t> training = {1, 2, 3, 1, 2, 4, 1, 2, 3, 5}, held_out = {1, 2, 3, 4, 5, 1, 2, 3, 1};
  const DatasetOptions options{.T = 4, .vocabulary = 8};
  const Dataset a(write("train", training), options), b(write("valid", held_out), options);
  TokenBigram bigram(8);
  bigram.add(training);
  double nats = 0;
  for (size_t i = 0; i < 8; ++i) nats -= std::log(bigram.probability(held_out[i], held_out[i + 1]));
  EXPECT_NEAR(bigram_loss(a, b, 0), nats / 8, 1e-12);
  nats = 0;
  for (size_t i = 0; i < 4; ++i) nats -= std::log(bigram.probability(held_out[i], held_out[i + 1]));
  EXPECT_NEAR(bigram_loss(a, b, 1), nats / 4, 1e-12);
}

// Of 1000 tokens 128 are few: every eighth part of two.
TEST(TokenBigram, OfALargeCorpusASampleIsCounted) {
  TemporaryFolder folder;
  std::mt19937 random(5);
  std::vector<int32_t> training(1000);
  for (int32_t& id : training) id = int32_t(random() % 8);
  TokenWriter writer(folder / "x", 8);
  writer.append(training);
  writer.end_document();
  writer.finish();
  const Dataset dataset({{folder / "x", 1}}, {.T = 4, .vocabulary = 8});
  TokenBigram bigram(8);
  for (size_t part = 0; 2 * part < training.size(); part += 8) {
    bigram.add(std::span(training).subspan(2 * part, 2));
    bigram.end_text();
  }
  double nats = 0;
  for (size_t i = 0; i < 4; ++i) nats -= std::log(bigram.probability(training[i], training[i + 1]));
  EXPECT_NEAR(bigram_loss(dataset, dataset, 1, 128), nats / 4, 1e-12);
}

}  // namespace
}  // namespace keel::data
