// Sums over held-out text against counts by hand. On 4 ranks the mesh is tensor 2 x data 2.
#include "framework/train/evaluation.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "framework/comm/mpi.h"
#include "framework/data/token_writer.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"
#include "tests/support/toy_model.h"

namespace keel::train {
namespace {

// The loss of a counted target is half its id, and a little more on each rank of a tensor group.
class HalfTheId : public keel::testing::ToyModel {
 public:
  explicit HalfTheId(double more) : more_(more) {}
  void refresh() override {}
  void begin_step() override {}
  void forward_backward(Tensor, const nn::TokenBatch&, const nn::StepOptions&) override {}
  void evaluate(Tensor sums, const nn::TokenBatch& batch) override {
    for (int64_t t = 0; t < batch.targets.elements(); ++t)
      if (const int32_t id = batch.targets.as<int32_t>()[t]; id >= 0)
        add(sums, {.loss = 0.5 * id + more_, .counted = 1, .finite = 1});
  }

 private:
  double more_;
};

class EvaluationTest : public ::testing::Test {
 protected:
  EvaluationTest()
      : world(comm::make_mpi_communicator(MPI_COMM_WORLD)),
        mesh(*world, world->size() == 4 ? 2 : 1),
        model(mesh.tensor().rank() * 0.25) {}

  // Documents of bytes, each followed by its end.
  std::string written(const std::string& name, const std::vector<std::string>& documents) {
    const std::string prefix = folder / name;
    data::TokenWriter writer(prefix, 257);
    data::TokenNotes notes{.tokenizer = "bytes", .model = "", .vocabulary = 257, .end_of_document = 256};
    for (const std::string& text : documents) {
      std::vector<int32_t> ids(text.begin(), text.end());
      ids.push_back(256);
      writer.append(ids);
      writer.end_document();
      notes.tokens += int64_t(ids.size());
      notes.bytes += int64_t(text.size());
    }
    notes.documents = int64_t(documents.size());
    writer.prepare(notes);
    writer.commit();
    return prefix;
  }

  EvaluationResult evaluate(const std::vector<data::Source>& sources, bool document_mask, int64_t sequences) {
    const data::Dataset dataset(sources, {.T = 4, .vocabulary = 300, .document_mask = document_mask});
    Evaluation evaluation(dataset, {.micro_sequences = 1, .length = 4, .micro_steps = 1}, document_mask, sequences);
    return *evaluation.run(model, mesh);
  }

  testing::TemporaryFolder folder;
  std::unique_ptr<comm::Communicator> world;
  parallel::Mesh mesh;
  HalfTheId model;
};

// Tokens 2 4 6 E | 8 2 E: rows of targets 4 6 E 8 and 2 E.
TEST_F(EvaluationTest, ALossPerByteIsThatOfTheTokensThatCount) {
  const std::string prefix = written("text", {"\2\4\6", "\10\2"});
  const bool split = mesh.tensor().size() > 1;  // half of the ranks say 0.25 more of each token
  const auto nats = [&](double ids, double counted) { return ids / 2 + (split ? 0.125 * counted : 0); };
  const EvaluationResult whole = evaluate({{prefix}}, false, 0);
  EXPECT_EQ(whole.counted_tokens, 6);
  EXPECT_EQ(whole.loss, nats(4 + 6 + 256 + 8 + 2 + 256, 6) / 6);
  EXPECT_EQ(whole.nats_per_byte, nats(4 + 6 + 256 + 8 + 2 + 256, 6) / 4) << "the end of a document has no bytes";
  const EvaluationResult masked = evaluate({{prefix}}, true, 0);
  EXPECT_EQ(masked.counted_tokens, 5);
  EXPECT_EQ(masked.nats_per_byte, nats(4 + 6 + 256 + 2 + 256, 5) / 3) << "what begins a document is not predicted";
  const EvaluationResult part = evaluate({{prefix}}, false, 1);
  EXPECT_EQ(part.counted_tokens, 4);
  EXPECT_EQ(part.nats_per_byte, nats(4 + 6 + 256 + 8, 4) / 3);
}

TEST_F(EvaluationTest, WithoutATokenizerThereIsNoLossPerByte) {
  const std::string known = written("known", {"\2\4\6", "\10\2"}), unknown = written("unknown", {"\2\4"});
  std::filesystem::remove(unknown + ".json");
  EXPECT_GT(evaluate({{known}, {known}}, false, 0).nats_per_byte, 0);
  const EvaluationResult result = evaluate({{known}, {unknown}}, false, 0);
  EXPECT_EQ(result.counted_tokens, 8);
  EXPECT_EQ(result.nats_per_byte, 0);
}

// Copies of one tokenizer, by the checksum in the notes, are loaded once: thousands of shards have one each.
TEST_F(EvaluationTest, OneTokenizerOfManyFilesIsLoadedOnce) {
  const std::string tokenizers = testing::golden_file("tokenizers/gpt2/");
  std::filesystem::copy_file(tokenizers + "tokenizer.json", folder / "tokenizer.json");
  const int64_t vocabulary = data::byte_level_tokenizer(folder / "tokenizer.json", 256)->vocabulary();
  for (const std::string name : {"one", "two"}) {
    data::TokenWriter writer(folder / name, vocabulary);
    writer.append(std::vector<int32_t>{2, 4, 6, 256});
    writer.end_document();
    writer.prepare(data::TokenNotes{.tokenizer = "byte_level_bpe",
                                    .model = name == "one" ? "tokenizer.json" : "gone.json",
                                    .model_crc32c = data::tokenizer_crc32c(folder / "tokenizer.json"),
                                    .vocabulary = vocabulary,
                                    .end_of_document = 256,
                                    .tokens = 4,
                                    .documents = 1,
                                    .bytes = 3});
    writer.commit();
  }
  const data::Dataset both({{folder / "one"}, {folder / "two"}}, {.T = 4, .vocabulary = vocabulary});
  Evaluation evaluation(both, {.micro_sequences = 1, .length = 4, .micro_steps = 1}, false, 0);
  EXPECT_GT(evaluation.run(model, mesh)->nats_per_byte, 0);
}

// Where ranks see numbers of their own, as on unlike hosts, all get their mean: what ends a run is decided by it.
TEST_F(EvaluationTest, AllRanksGetTheSameLoss) {
  const double loss = evaluate({{written("text", {"\2\4\6"})}}, false, 0).loss;
  EXPECT_EQ(comm::all_reduce_value(*world, loss, comm::Reduction::max), loss);
  EXPECT_EQ(-comm::all_reduce_value(*world, -loss, comm::Reduction::max), loss);
}

}  // namespace
}  // namespace keel::train
