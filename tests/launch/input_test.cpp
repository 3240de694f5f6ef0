// Wrong input: one line that names it, exit 2 on all ranks, within seconds, and nothing is lost.
#include <gmock/gmock.h>

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
}

// One byte more at the end of the file runs as before, but is another build.
TEST_F(Input, RanksWithDifferentBuilds) {
  std::filesystem::copy_file(KEEL_PROGRAM, directory_ / "other");
  std::ofstream(directory_ / "other", std::ios::app) << '.';
  const Ended ended = run_command(fmt::format(
      "cd {} && env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {} --oversubscribe --bind-to none "
      "-n 2 {} train run.yaml : -n 1 ./other train run.yaml",
      directory_.string(), MPIRUN, KEEL_PROGRAM));
  EXPECT_EQ(ended.code, 2) << ended.output;
  ASSERT_EQ(ended.ours.size(), 1u) << ended.output;
  EXPECT_THAT(ended.ours[0], HasSubstr("the program (keel --version) differs between ranks: rank 2"));
}

TEST_F(Input, Data) {
  refused("train run.yaml data.train=nowhere", {"nowhere"});
  refused("train run.yaml model.vocab=100", {"257", "100"});
  refused("train run.yaml data.sequence_length=1000000", {"corpus"});
  std::filesystem::resize_file(directory_ / "corpus.idx", 20);
  refused("train run.yaml", {"corpus.idx"});
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
