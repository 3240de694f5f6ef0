// Wrong input: one line that names it, exit 2 on all ranks, within seconds, and nothing is lost.
#include <gmock/gmock.h>

#include "framework/data/token_writer.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::HasSubstr;

class Input : public RunFixture {
 protected:
  void refused(const std::string& arguments, const std::vector<std::string>& words, int ranks = 2) {
    Ended ended = keel(arguments, ranks);
    EXPECT_EQ(ended.code, 2) << arguments << "\n" << ended.output;
    std::erase_if(ended.ours, [](const std::string& line) { return line.find("error: ") == std::string::npos; });
    ASSERT_EQ(ended.ours.size(), 1u) << arguments << "\n" << ended.output;
    for (const std::string& word : words) EXPECT_THAT(ended.ours[0], HasSubstr(word)) << arguments;
    EXPECT_LT(ended.seconds, 30) << arguments;  // a hang; five seconds on a quiet machine
  }

  // One rank in each of these folders of the fixture's, each with its own command.
  struct Rank {
    std::string folder, command;
  };
  Ended start_together(const std::vector<Rank>& ranks) {
    std::string programs;
    for (const auto& [folder, command] : ranks)
      programs +=
          fmt::format("{} -n 1 -wdir {} {}", programs.empty() ? "" : " :", (directory_ / folder).string(), command);
    return run_command(fmt::format(
        "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {} --oversubscribe --bind-to none {}", MPIRUN,
        programs));
  }
  void refused_together(const std::vector<Rank>& ranks, const std::string& words) {
    const Ended ended = start_together(ranks);
    EXPECT_EQ(ended.code, 2) << ended.output;
    ASSERT_EQ(errors_of(ended).size(), 1u) << ended.output;
    EXPECT_THAT(errors_of(ended)[0], HasSubstr(words));
  }

  // PREFIX.bin and .idx, one document without notes.
  void write_tokens(const std::string& prefix, int64_t vocabulary, const std::vector<int32_t>& ids) {
    data::TokenWriter writer((directory_ / prefix).string(), vocabulary);
    writer.append(ids);
    writer.end_document();
    writer.finish();
  }
};

TEST_F(Input, KeysAndValues) {
  refused("train run.yaml optimizer.learning_rat=1", {"learning_rat", "lr"});
  refused("train run.yaml optimizer.lr=fast", {"optimizer.lr", "fast"});
  refused("train run.yaml model.attention.heads=5", {"kv_heads"});
  refused("train run.yaml model.attention.qk_norm.kind=rsm", {"rsm", "rms"});
  refused("train absent.yaml", {"absent.yaml"});
  refused("train run.yaml --no-such-option", {"no-such-option"});
  refused("trian run.yaml", {"trian"}, 0);
}

TEST_F(Input, Layouts) {
  refused("train run.yaml parallel.tensor=3 model.attention.heads=4", {"parallel.tensor", "3"}, 3);
  refused("train run.yaml parallel.tensor=4", {"4", "2"}, 2);
  refused("train run.yaml batch.sequences=6 batch.micro_sequences=2", {"6", "2"}, 2);
  refused("train run.yaml model.hidden=30", {"hidden 30", "4 heads"});
  // Before any file of tokens is read, which may be large, and before the run's folder is made (CASES R58).
  std::vector<int32_t> ids(20000, 5);
  ids[12345] = 300;
  write_tokens("wide", 301, ids);
  refused("train run.yaml name=early data.train=wide data.valid=null model.vocab=257 parallel.tensor=3",
          {"command line: parallel.tensor=3: parallel.tensor: 3 ranks do not divide 4 heads"}, 3);
  refused("train run.yaml name=early telemetry.every=10 batch.sequences=600000", {"telemetry.every", "524288"});
  refused("train run.yaml name=early telemetry.every=null batch.sequences=1000000000000 batch.micro_sequences=auto",
          {"fewer than one global batch of 1000000000000"});
  EXPECT_FALSE(std::filesystem::exists(directory_ / "runs/early"));
}

// What is found once the run has begun still names the line that the user wrote.
TEST_F(Input, LateErrorsNameTheUsersLine) {
  ASSERT_EQ(keel("train run.yaml name=run train.steps=5").code, 0);
  refused("train run.yaml name=run seed=2", {"command line: seed=2: seed: fixed when a run is resumed"});
  std::string text = kConfig;
  text.replace(text.find("ffn: 64"), 7, "ffn: 96");
  write_config("changed.yaml", text);
  refused("train changed.yaml name=run", {"changed.yaml:3:", "model.ffn: fixed when a run is resumed"});
}

// One byte more at the end of the file runs as before, but is another build.
TEST_F(Input, RanksWithDifferentBuilds) {
  std::filesystem::copy_file(KEEL_PROGRAM, directory_ / "other");
  std::ofstream(directory_ / "other", std::ios::app) << '.';
  const std::string train = fmt::format("{} train run.yaml", KEEL_PROGRAM);
  refused_together({{"", train}, {"", train}, {"", "./other train run.yaml"}},
                   "the program (keel --version) differs between ranks: rank 2");
}

TEST_F(Input, RanksWithDifferentCommands) {
  write_config("other.yaml", kConfig);
  const std::string train = fmt::format("{} train run.yaml", KEEL_PROGRAM);
  for (const std::string& other : {fmt::format("{} train other.yaml", KEEL_PROGRAM), train + " optimizer.lr=1e-3",
                                   fmt::format("{} ablate run.yaml", KEEL_PROGRAM)})
    refused_together({{"", train}, {"", other}}, "the command line differs between ranks: rank 1");
  EXPECT_FALSE(std::filesystem::exists(directory_ / "runs"));
}

// The same command where one rank sees an older copy of the file. A rank that sees none takes rank 0's word.
TEST_F(Input, RanksWithDifferentConfigs) {
  for (const char* folder : {"a", "b", "c"}) std::filesystem::create_directories(directory_ / folder);
  write_config("a/run.yaml", kConfig);
  write_config("b/run.yaml", std::string(kConfig) + "seed: 2\n");
  const std::string train = fmt::format(
      "{} train run.yaml train.steps=1 schedule.warmup_steps=0 data.train=../corpus data.valid=null "
      "log.directory=../runs",
      KEEL_PROGRAM);
  for (const std::string& command : {train, fmt::format("{} ablate run.yaml", KEEL_PROGRAM),
                                     fmt::format("{} bench --config run.yaml", KEEL_PROGRAM)})
    refused_together({{"a", command}, {"b", command}}, "run.yaml differs between ranks: rank 1 does not have");
  EXPECT_FALSE(std::filesystem::exists(directory_ / "runs"));
  const Ended ended = start_together({{"a", train}, {"c", train}});
  EXPECT_EQ(ended.code, 0) << ended.output;
}

// Each rank looks for the files of a pattern itself: disks of hosts may differ.
TEST_F(Input, RanksWithDifferentData) {
  for (const char* name : {"a/s_0", "a/s_1", "b/s_0", "b/s_1", "b/s_2", "a/v_0", "b/v_0", "c/s_0", "c/s_1", "c/v_0"}) {
    std::filesystem::create_directories((directory_ / name).parent_path());
    write_tokens(name, 257, std::vector<int32_t>(1000, name[0] == 'c' && name[2] == 'v' ? 7 : 5));
  }
  const std::string command = fmt::format(
      "{} train ../run.yaml model.vocab=257 data.train=s_*.bin data.valid=v_*.bin data.verify=false", KEEL_PROGRAM);
  refused_together({{"a", command}, {"b", command}},
                   "training data differs between ranks: rank 1 does not have what rank 0 has");
  refused_together({{"a", command}, {"c", command}},
                   "held-out data differs between ranks: rank 1 does not have what rank 0 has");
}

// Under another name, too.
TEST_F(Input, HeldOutDataThatIsTrainedOn) {
  std::filesystem::create_symlink("corpus.bin", directory_ / "link.bin");
  std::filesystem::create_symlink("corpus.idx", directory_ / "link.idx");
  refused("train run.yaml data.valid=corpus", {"corpus.bin: both data.train (corpus.bin) and data.valid name it"});
  refused("train run.yaml 'data.train=[corpus-valid, corpus]' data.valid=link", {"link.bin: both data.train (corpus"});
}

TEST_F(Input, Data) {
  refused("train run.yaml data.train=nowhere", {"nowhere"});
  refused("train run.yaml model.vocab=100", {"257", "100"});
  refused("train run.yaml data.sequence_length=1000000", {"corpus"});
  std::filesystem::resize_file(directory_ / "corpus.idx", 20);
  refused("train run.yaml", {"corpus.idx"});
}

// CASES R46: one id that the model does not have, which the padding of its vocabulary would hold; and the largest of 32
// bits. Found before the first step, or by the one rank that draws it.
TEST_F(Input, IdsOutsideTheVocabulary) {
  std::vector<int32_t> ids(20000, 5);
  ids[12345] = 32000;
  write_tokens("wide", 32128, ids);
  const std::string common =
      "train run.yaml data.valid=null model.vocab=32000 model.pad_vocab_to=128 data.sequence_length=2000 ";
  const std::vector<std::string> words = {"wide.bin: id 32000 at token 12345", "document 0", "vocabulary of 32000 ids"};
  for (const char* run :
       {"parallel.tensor=1", "parallel.tensor=1 data.verify=false", "parallel.tensor=2 data.verify=false"})
    refused(fmt::format("{} data.train=wide {}", common, run), words);

  const std::string header = "{'descr': '<u4', 'fortran_order': False, 'shape': (20000,), }";
  std::ofstream file(directory_ / "huge.npy", std::ios::binary);
  const auto header_bytes = uint16_t(118);
  file << "\x93NUMPY\x01" << '\0';
  file.write(reinterpret_cast<const char*>(&header_bytes), 2);
  file << header << std::string(header_bytes - header.size() - 1, ' ') << '\n';
  ids[12345] = -1;  // 4294967295 as uint32
  file.write(reinterpret_cast<const char*>(ids.data()), std::streamsize(ids.size() * 4));
  file.close();
  refused(common + "data.train=huge.npy", {"huge.npy: id 4294967295 at token 12345"});
}

// CASES R45: ids beyond 16 bits are read as they are; an index that names another type is refused.
TEST_F(Input, TypesOfIds) {
  std::vector<int32_t> ids(400, 3);
  ids[200] = 70000;
  write_tokens("many", 70001, ids);
  const Ended ended =
      keel("train run.yaml data.valid=null data.train=many model.vocab=70001 schedule.warmup_steps=0 train.steps=1", 2);
  EXPECT_EQ(ended.code, 0) << ended.output;
  refused("train run.yaml data.valid=null data.train=many model.vocab=70000", {"many.bin: id 70000 at token 200"});

  std::fstream index(directory_ / "corpus.idx", std::ios::binary | std::ios::in | std::ios::out);
  constexpr int kTypeByte = 9 + 8;  // after the magic and the version
  index.seekg(kTypeByte);
  ASSERT_EQ(index.get(), 8) << "uint16";
  index.seekp(kTypeByte);
  index.put(4);  // int32
  index.close();
  refused("train run.yaml", {"corpus.idx"});
}

// CASES R50: fewer samples than a batch are refused; one more than two batches is no special case; and a validation set
// smaller than a batch is counted once at any number of ranks.
TEST_F(Input, FewSamples) {
  auto tokens = [&](int64_t samples) {
    std::vector<int32_t> ids(size_t(samples * 32 + 1));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i * i % 100);
    return ids;
  };
  write_tokens("five", 100, tokens(5));
  write_tokens("nine", 100, tokens(9));
  write_tokens("three", 100, tokens(3));
  const std::string common = "train run.yaml model.vocab=100 train.steps=5 eval.every=5 checkpoint.final=false ";
  refused(common + "data.train=five data.valid=null", {"5 samples", "global batch of 8"});
  std::vector<double> losses;
  for (int ranks : {1, 2}) {
    const std::string name = fmt::format("ranks{}", ranks);
    const Ended ended =
        keel(fmt::format("{} data.train=nine data.valid=three batch.sequences=4 name={}", common, name), ranks);
    ASSERT_EQ(ended.code, 0) << ended.output;
    EXPECT_EQ(metric(name, "loss").size(), 5u);
    ASSERT_EQ(metric(name, "valid_loss").size(), 1u);
    losses.push_back(metric(name, "valid_loss")[0]);
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-5);
}

TEST_F(Input, Checkpoints) {
  ASSERT_EQ(keel("train run.yaml train.steps=5").code, 0);
  refused("train run.yaml checkpoint.resume=none", {"checkpoint.resume"});
  refused("train run.yaml name=other model.attention.qk_norm.weight=shared checkpoint.resume=" + checkpoint("run", 5),
          {"model.attention.qk_norm.weight", "per_head", "shared"});
  const std::string file = checkpoint("run", 5);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  refused("train run.yaml checkpoint.resume=" + file, {"step-00000005.h5", "cut short"});
  refused("eval " + file, {"step-00000005.h5"}, 0);
}

}  // namespace
}  // namespace keel::testing
