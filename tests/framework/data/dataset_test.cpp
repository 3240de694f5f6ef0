#include "framework/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "framework/data/token_writer.h"
#include "tests/framework/data/temporary_folder.h"

namespace keel::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Documents = std::vector<std::vector<int32_t>>;

void write_pair(const std::string& prefix, const Documents& documents, int64_t vocabulary = 1000) {
  TokenWriter writer(prefix, vocabulary);
  for (const auto& document : documents) {
    writer.append(document);
    writer.end_document();
  }
  writer.finish();
}

std::vector<int32_t> counting(int n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

struct Batch {
  Batch(const Dataset& dataset, std::vector<SampleId> rows, int64_t T, bool mask = false)
      : tokens(rows.size() * size_t(T), 99), targets(tokens), positions(mask ? tokens.size() : 0, 99) {
    counted = dataset.fill(rows, {tokens, targets, positions});
  }
  std::vector<int32_t> tokens, targets, positions;
  int64_t counted = 0;
};

TEST(Dataset, RowsAreTokensAndTheOnesAfterThem) {  // CASES R51
  TemporaryFolder folder;
  write_pair(folder / "x", {counting(10)});
  Dataset dataset({{folder / "x"}}, {4, 1000, {}});
  Batch batch(dataset, {{0, 0, 1}, {0, 3, 0}}, 4);
  EXPECT_THAT(batch.tokens, ElementsAre(4, 5, 6, 7, 0, 1, 2, 3));
  EXPECT_THAT(batch.targets, ElementsAre(5, 6, 7, 8, 1, 2, 3, 4));
  EXPECT_EQ(batch.counted, 8);
  EXPECT_NE(input_error_of([&] { Batch(dataset, {{0, 0, 3}}, 4); }), "");  // tokens 12..15 of 10
  EXPECT_THROW(Batch(dataset, {{0, 0, -1}}, 4), Error);
  EXPECT_THROW(Batch(dataset, {{0, 0, 0}}, 3), Error);
}

// A document ends with its end-of-document token, here 0.
TEST(Dataset, PositionsRestartAndDocumentsDoNotPredictOneAnother) {
  TemporaryFolder folder;
  write_pair(folder / "x", {{3, 3, 3, 0}, {}, {3, 3, 0}, {}, {0}, {5, 6}});
  Dataset ours({{folder / "x"}}, {4, 10, true});
  Batch batch(ours, {{0, 0, 0}, {0, 0, 1}}, 4, true);
  EXPECT_THAT(batch.tokens, ElementsAre(3, 3, 3, 0, 3, 3, 0, 0));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 0));
  EXPECT_THAT(batch.targets, ElementsAre(3, 3, 0, -1, 3, 0, -1, -1));
  EXPECT_EQ(batch.counted, 5);
  // A row that begins inside a document counts from there.
  Dataset three({{folder / "x"}}, {3, 10, true});
  Batch middle(three, {{0, 0, 1}}, 3, true);
  EXPECT_THAT(middle.tokens, ElementsAre(0, 3, 3));
  EXPECT_THAT(middle.positions, ElementsAre(0, 0, 1));
  EXPECT_THAT(middle.targets, ElementsAre(-1, 3, 0));
}

TEST(Dataset, TheMaskNeedsAnIndex) {
  TemporaryFolder folder;
  write_bytes(folder / "x.npy", "\x93NUMPY\x01" + std::string("\0", 1) + bytes_of<uint16_t>(60) +
                                    "{'descr': '|u1', 'fortran_order': False, 'shape': (8,), }  \n" +
                                    std::string("\3\3\0\0\4\4\0\5", 8));
  EXPECT_THAT(input_error_of([&] {
                Dataset({{folder / "x.npy"}}, {7, 10, true});
              }),
              AllOf(HasSubstr("x.npy"), HasSubstr("set data.document_mask to false")));
}

TEST(Dataset, WithoutTheMaskEveryTargetCounts) {
  TemporaryFolder folder;
  write_pair(folder / "x", {{3, 3, 0}, {4, 0}});
  Dataset dataset({{folder / "x"}}, {4, 10, {}});
  Batch batch(dataset, {{0, 0, 0}}, 4);
  EXPECT_THAT(batch.targets, ElementsAre(3, 0, 4, 0));
}

TEST(Dataset, ValidationCountsEveryTokenOnceAtEveryNumberOfRanks) {  // CASES R50
  TemporaryFolder folder;
  write_pair(folder / "x", {counting(11)});
  write_pair(folder / "y", {{500, 501, 502}});
  for (bool mask : {false, true}) {
    Dataset dataset({{folder / "x"}, {folder / "y"}}, {4, 1000, mask});
    const ValidationOrder order = dataset.validation_order();
    EXPECT_EQ(order.samples(), 4);
    for (int ranks : {1, 2}) {
      std::vector<int32_t> counted_targets;
      int64_t counted = 0;
      for (int64_t step = 0; step < 2; ++step) {
        std::vector<SampleId> rows(6);
        for (size_t i = 0; i < 6; ++i) rows[i] = order(6 * step + int64_t(i));
        for (int rank = 0; rank < ranks; ++rank) {
          auto mine = slice_of_rank(std::span(rows), rank, ranks);
          Batch batch(dataset, {mine.begin(), mine.end()}, 4, mask);
          counted += batch.counted;
          for (int32_t target : batch.targets)
            if (target >= 0) counted_targets.push_back(target);
          for (int32_t token : batch.tokens) EXPECT_TRUE(token >= 0 && token < 1000);
        }
      }
      std::vector<int32_t> expected = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 501, 502};
      EXPECT_EQ(counted_targets, expected);
      EXPECT_EQ(counted, 12);
    }
  }
}

TEST(Dataset, NamesIdsOutsideTheVocabularyAsTheyComeUp) {  // CASES R46
  TemporaryFolder folder;
  std::vector<int32_t> ids(20000, 5);
  ids[12345] = 32000;
  write_pair(folder / "x", {ids}, 32128);
  Dataset dataset({{folder / "x"}}, {5, 32000, {}});
  EXPECT_EQ(input_error_of([&] { Batch(dataset, {{0, 0, 2467}}, 5); }), "");  // tokens 12335 .. 12339, target 12340
  for (int64_t sample : {2468, 2469})  // 12345 as the last target, and as the first token
    EXPECT_THAT(input_error_of([&] {
                  Batch(dataset, {{0, 0, sample}}, 5);
                }),
                AllOf(HasSubstr("x.bin: id 32000 at token 12345 (document 0, its token 12345)"),
                      HasSubstr("vocabulary of 32000 ids")));
  EXPECT_THAT(input_error_of([&] { dataset.verify_ids(); }), HasSubstr("id 32000 at token 12345"));
}

TEST(Dataset, RefusesTrainingDataSmallerThanABatch) {  // CASES R50
  TemporaryFolder folder;
  write_pair(folder / "x", {counting(21)});
  Dataset five({{folder / "x"}}, {4, 1000, {}});
  EXPECT_THAT(input_error_of([&] { five.check_batch(8); }),
              AllOf(HasSubstr("5 samples of 4 tokens"), HasSubstr("global batch of 8")));
  EXPECT_EQ(input_error_of([&] { five.check_batch(5); }), "");
  Dataset none({{folder / "x"}}, {21, 1000, {}});
  EXPECT_THAT(input_error_of([&] { none.training_order(1); }), HasSubstr("21 tokens make no sample; 22 are needed"));
  EXPECT_THAT(input_error_of([&] { Dataset({}, {4, 10, {}}); }), HasSubstr("no data source"));
}

// 9 samples, batch 4, 2 ranks: the ninth sample opens step 2, followed by three of the next epoch.
TEST(Dataset, ABatchMaySpanTwoEpochs) {  // CASES R50
  TemporaryFolder folder;
  write_pair(folder / "x", {counting(37)});
  Dataset dataset({{folder / "x"}}, {4, 1000, {}});
  const SampleOrder order = dataset.training_order(1);
  std::vector<int> seen(9, 0);
  for (int64_t g = 0; g < 9; ++g) ++seen[size_t(order(g).sample)];
  EXPECT_THAT(seen, ElementsAreArray(std::vector<int>(9, 1)));
  EXPECT_EQ(order(8).epoch, 0);
  EXPECT_EQ(order(9).epoch, 1);
}

TEST(Fingerprint, NamesWhatChanged) {
  TemporaryFolder folder;
  write_pair(folder / "x", {counting(100)});
  write_pair(folder / "y", {counting(50)});
  auto text = [&](std::vector<Source> sources, int64_t T = 4, uint64_t seed = 1) {
    return Dataset(sources, {T, 1000, {}}).fingerprint_text(seed);
  };
  const std::string stored = text({{folder / "x", 0.7}, {folder / "y", 0.3}});
  auto difference = [&](const std::string& now) { return input_error_of([&] { check_fingerprint(stored, now); }); };
  EXPECT_EQ(difference(text({{folder / "x", 7}, {folder / "y", 3}})), "");  // the same shares
  EXPECT_THAT(difference(text({{folder / "x", 0.6}, {folder / "y", 0.4}})), HasSubstr("weight 7/10"));
  EXPECT_THAT(difference(text({{folder / "x", 0.7}, {folder / "y", 0.3}}, 5)), HasSubstr("sequence length: 5"));
  EXPECT_THAT(difference(text({{folder / "x", 0.7}, {folder / "y", 0.3}}, 4, 2)), HasSubstr("seed: 2"));
  EXPECT_THAT(difference(text({{folder / "y", 0.7}, {folder / "x", 0.3}})), HasSubstr("source 0: 50 tokens"));
  EXPECT_THAT(difference(text({{folder / "x"}})), HasSubstr("sources: 1"));
  auto ids = counting(50);
  ids[20] = 7;
  write_pair(folder / "y", {ids});
  const std::string changed = text({{folder / "x", 0.7}, {folder / "y", 0.3}});
  EXPECT_THAT(difference(changed), HasSubstr("source 1: 50 tokens, uint16"));
  EXPECT_NE(changed, stored);
}

}  // namespace
}  // namespace keel::data
