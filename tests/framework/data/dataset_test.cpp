#include "framework/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "framework/data/token_writer.h"
#include "tests/framework/data/little_endian.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::data {
namespace {

using namespace keel::testing;
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

// As checkpoints of before have it: one source, and several with weights.
TEST(Fingerprint, StaysWhatItWas) {
  TemporaryFolder folder;
  write_pair(folder / "x", {counting(100)});
  write_pair(folder / "y", {counting(50)});
  const std::string one = Dataset({{folder / "x"}}, {4, 1000, {}}).fingerprint_text(1);
  EXPECT_THAT(one, HasSubstr("sources: 1\nsource 0: 100 tokens, uint16, weight 1/1, content "));
  EXPECT_EQ(one, Dataset({{folder / "x", 5}}, {4, 1000, {}}).fingerprint_text(1));
  EXPECT_THAT(Dataset({{folder / "x", 2}, {folder / "y", 1}}, {4, 1000, {}}).fingerprint_text(1),
              AllOf(HasSubstr("source 0: 100 tokens, uint16, weight 2/3, content "),
                    HasSubstr("source 1: 50 tokens, uint16, weight 1/3, content ")));
}

// Shards without weights are one set, whatever their sizes: an epoch is each sample once. A pattern is such a set too.
TEST(Dataset, ShardsAreOneSet) {
  TemporaryFolder folder;
  write_pair(folder / "s_0", {counting(401)});
  write_pair(folder / "s_1", {counting(3)});
  write_pair(folder / "s_2", {counting(41)});
  const Dataset listed({{folder / "s_0"}, {folder / "s_1"}, {folder / "s_2"}}, {4, 1000, {}});
  const Dataset pattern({{folder / "s_*.bin"}}, {4, 1000, {}});
  EXPECT_EQ(listed.fingerprint_text(1), pattern.fingerprint_text(1));
  EXPECT_THAT(listed.fingerprint_text(1), HasSubstr("source 2: 41 tokens, uint16, weight 1/1 of set 0, content "));
  const SampleOrder order = pattern.training_order(1);
  std::vector<int> counts(3);
  for (int64_t g = 0; g < 110; ++g) {
    EXPECT_EQ(order(g).epoch, 0);
    ++counts[size_t(order(g).source)];
  }
  EXPECT_THAT(counts, ElementsAre(100, 0, 10));
  EXPECT_THAT(listed.source_lines(),
              ElementsAre(folder / "s_0" + ": 100 samples of 4 tokens, 90.9% of those that training takes",
                          folder / "s_1" + ": 0 samples of 4 tokens, 0% of those that training takes",
                          folder / "s_2" + ": 10 samples of 4 tokens, 9.09% of those that training takes"));
  const Dataset weighted({{folder / "s_[01].bin", 1}, {folder / "s_2", 3}}, {4, 1000, {}});
  EXPECT_THAT(weighted.source_lines(),
              ElementsAre(folder / "s_[01].bin" + ": 100 samples of 4 tokens, 25% of those that training takes",
                          folder / "s_2" + ": 10 samples of 4 tokens, 75% of those that training takes"));
  EXPECT_THAT(weighted.fingerprint_text(1), HasSubstr("source 1: 3 tokens, uint16, weight 1/4 of set 0, content "));
  EXPECT_THAT(input_error_of([&] {
                Dataset({{folder / "none_*"}}, {4, 1000, {}});
              }),
              HasSubstr("none_*: no token file"));
}

// What `keel tokenize --valid` holds out of a shard lies beside it.
TEST(Dataset, APatternTakesNoHeldOutPartOfItsFiles) {
  TemporaryFolder folder;
  for (const char* name : {"s_0", "s_0-valid", "s_1-valid", "s_2", "s-valid-0"})
    write_pair(folder / name, {counting(50)});
  for (const char* name : {"n.npy", "n-valid.npy", "n-valid.bin"}) write_bytes(folder / name, "");
  EXPECT_THAT(matching_files(folder / "s*.bin"),
              ElementsAre(folder / "s-valid-0.bin", folder / "s_0.bin", folder / "s_1-valid.bin", folder / "s_2.bin"));
  EXPECT_THAT(matching_files(folder / "s_?-valid.bin"),
              ElementsAre(folder / "s_0-valid.bin", folder / "s_1-valid.bin"));
  EXPECT_THAT(matching_files(folder / "n*"), ElementsAre(folder / "n-valid.bin", folder / "n.npy"));
}

// Ids alone, without header and index: their type is given, and the id that ends each document; the mask is that of the
// pair.
TEST(Dataset, BareIdsHaveTheTypeAndTheDocumentsThatAreGiven) {
  TemporaryFolder folder;
  const std::vector<int32_t> ids = {5, 6, 0, 7, 0, 8, 9, 10, 11, 0, 0, 12, 13, 14, 0, 15, 16};
  Documents documents(1);
  std::string bytes;
  for (const int32_t id : ids) {
    bytes += bytes_of(uint16_t(id));
    documents.back().push_back(id);
    if (id == 0) documents.emplace_back();
  }
  write_bytes(folder / "bare.npy", bytes);
  write_pair(folder / "pair", documents);
  const std::string bare = folder / "bare.npy";
  const Dataset paired({{folder / "pair"}}, {4, 1000, true});
  const Dataset unpaired({{.path = bare, .type = TokenType::uint16, .document_end = 0}}, {4, 1000, true});
  for (int64_t sample = 0; sample < 4; ++sample) {
    const Batch a(paired, {{0, 0, sample}}, 4, true), b(unpaired, {{0, 0, sample}}, 4, true);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.targets, b.targets) << sample;
    EXPECT_EQ(a.positions, b.positions) << sample;
    EXPECT_EQ(a.counted, b.counted);
  }
  const auto error = [](const std::string& path, std::optional<TokenType> type) {
    return input_error_of([&] { TokenFile file(path, type); });
  };
  EXPECT_THAT(error(bare, TokenType::uint32), HasSubstr("34 bytes are no whole number of uint32 tokens"));
  EXPECT_THAT(error(folder / "pair", TokenType::uint16), HasSubstr("pair.idx: says the type"));
  EXPECT_THAT(error(bare, std::nullopt), HasSubstr("give their type beside the path: {path: " + bare));
}

TEST(Dataset, SourcesHaveOneTokenizer) {
  TemporaryFolder folder;
  for (const char* name : {"x", "y", "bare"}) write_pair(folder / name, {counting(50)});
  TokenNotes notes{.tokenizer = "sentencepiece",
                   .model = "m",
                   .model_crc32c = 1,
                   .vocabulary = 400,
                   .end_of_document = 2,
                   .start_of_text = 1,
                   .tokens = 50,
                   .documents = 1};
  write_bytes(folder / "x.json", notes_text(notes));
  const auto error = [&](const TokenNotes& other) {
    write_bytes(folder / "y.json", notes_text(other));
    return input_error_of([&] { Dataset({{folder / "bare"}, {folder / "x"}, {folder / "y"}}, {4, 1000, {}}); });
  };
  EXPECT_EQ(error(notes), "");
  TokenNotes other = notes;
  other.model_crc32c.reset();  // older notes
  EXPECT_EQ(error(other), "");
  other.model_crc32c = 2;
  EXPECT_THAT(error(other), AllOf(HasSubstr(folder / "x.json and " + (folder / "y.json")), HasSubstr("CRC32C")));
  // Nor behind a file whose older notes do not say which one made it.
  for (const char* name : {"y", "z"}) std::filesystem::remove(folder / std::string(name) + ".json");
  write_pair(folder / "z", {counting(50)});
  write_bytes(folder / "z.json", notes_text(other));
  TokenNotes older = notes;
  older.model_crc32c.reset();
  write_bytes(folder / "y.json", notes_text(older));
  const std::vector<Source> three = {{folder / "y"}, {folder / "x"}, {folder / "z"}};
  EXPECT_THAT(input_error_of([&] {
                Dataset(three, {4, 1000, {}});
              }),
              AllOf(HasSubstr(folder / "x.json and " + (folder / "z.json")), HasSubstr("CRC32C")));
  EXPECT_EQ(Dataset({three[0], three[1]}, {4, 1000, {}}).notes()->path, folder / "x.json");
  other = notes;
  other.tokenizer = "byte_level_bpe";
  EXPECT_THAT(error(other), HasSubstr("kind sentencepiece and byte_level_bpe"));
  other = notes;
  other.vocabulary = 300;
  EXPECT_THAT(error(other), HasSubstr("vocabulary 400 and 300"));
  other = notes;
  other.end_of_document = 3;
  EXPECT_THAT(error(other), HasSubstr("end of document 2 and 3"));
  other = notes;
  other.start_of_text.reset();
  EXPECT_THAT(error(other), HasSubstr("start of text 1 and none"));
}

}  // namespace
}  // namespace keel::data
