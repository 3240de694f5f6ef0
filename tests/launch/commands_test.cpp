// Subcommands that look at files, models and the machine, as they are started.
#include <gmock/gmock.h>

#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Commands : public RunFixture {
 protected:
  // Standard output alone.
  std::string succeed(const std::string& arguments) {
    const Ended ended = keel(arguments + " 2>errors.txt");
    EXPECT_EQ(ended.code, 0) << arguments << "\n" << ended.output;
    return ended.output;
  }
  void refused(const std::string& arguments, const std::string& words) {
    const Ended ended = keel(arguments);
    EXPECT_EQ(ended.code, 2) << arguments << "\n" << ended.output;
    ASSERT_EQ(ended.ours.size(), 1u) << ended.output;
    EXPECT_THAT(ended.ours[0], HasSubstr(words)) << arguments;
  }
  std::string trained() {
    EXPECT_EQ(keel("train run.yaml name=run train.steps=5").code, 0);
    return checkpoint("run", 5);
  }
};

TEST_F(Commands, Doctor) {
  const std::string said = succeed("doctor");
  for (const char* word : {"keel  ", "cpu  ", "ranks     1 (", "hdf5  ", "GFLOP/s, bf16", "cuda  "})
    EXPECT_THAT(said, HasSubstr(word));
  EXPECT_THAT(keel("doctor", 2).output, HasSubstr("ranks     2 (2 on this host)"));
}

// Of all that `keel --help` lists, once for all ranks.
TEST_F(Commands, EachHasItsHelp) {
  std::istringstream listing(succeed("--help"));
  std::vector<std::string> names;
  bool inside = false;
  for (std::string line; std::getline(listing, line); inside |= line == "Subcommands:")
    if (inside && line.starts_with("  ") && line[2] != ' ') names.push_back(line.substr(2, line.find(' ', 2) - 2));
  EXPECT_THAT(names, ::testing::IsSupersetOf({"train", "ablate", "eval", "inspect", "plan", "doctor"}));
  for (const std::string& name : names) {
    const Ended ended = keel(name + " --help", 2);
    EXPECT_EQ(ended.code, 0) << name << ended.output;
    const size_t usage = ended.output.find("Usage: ");
    EXPECT_NE(usage, std::string::npos) << name << ended.output;
    EXPECT_THAT(ended.output.substr(0, ended.output.find('[')), HasSubstr(name));
    EXPECT_EQ(ended.output.find("Usage: ", usage + 1), std::string::npos) << name << " explains itself twice";
  }
}

TEST_F(Commands, Ngram) {
  std::ofstream(directory_ / "a.txt") << "abababab";
  std::ofstream(directory_ / "b.txt") << "ab";
  // p_1(a) = p_1(b) = (4 + 2/256) / (8 + 2); b follows a four times of four: p_2 = (4 + p_1(b)) / (4 + 1).
  const double p1 = (4 + 2 / 256.0) / 10, p2 = (4 + p1) / 5;
  const std::string said = succeed("ngram a.txt b.txt --orders 1,2");
  EXPECT_THAT(said, HasSubstr("# 8 bytes counted, 2 bytes scored"));
  EXPECT_THAT(said, HasSubstr(fmt::format("1          {:10.4f}", -std::log(p1))));
  EXPECT_THAT(said, HasSubstr(fmt::format("2          {:10.4f}", -(std::log(p1) + std::log(p2)) / 2)));
  EXPECT_EQ(succeed("ngram corpus corpus-valid --orders 3"), succeed("ngram corpus.bin corpus-valid.idx --orders 3"));
  refused("ngram a.txt b.txt --orders 9", "--orders: 9 is outside 1 to 8");
  refused("ngram a.txt absent.txt", "absent.txt");
  refused("ngram absent a.txt", "absent");
  refused("ngram text.txt b.txt --memory 0.0001", "takes more than");
}

TEST_F(Commands, Generate) {
  const std::string generate = "generate " + trained() + " --prompt 'the norm' --tokens 40 ";
  EXPECT_THAT(succeed(generate), StartsWith("the norm"));
  EXPECT_EQ(succeed(generate + "--seed 3"), succeed(generate + "--seed 3"));
  EXPECT_NE(succeed(generate + "--seed 3"), succeed(generate + "--seed 4"));
  EXPECT_EQ(succeed(generate + "--top 1 --seed 3"), succeed(generate + "--temperature 0 --seed 4"));
  std::ofstream(directory_ / "none.txt") << "0123456789";
  EXPECT_THAT(keel(generate + "--compare none.txt").output, HasSubstr("keel: 0 of "));
  EXPECT_THAT(keel(generate + "--compare text.txt").output, HasSubstr(" occur in text.txt; the longest run of it"));
  refused(generate + "--compare absent.txt", "absent.txt");
  refused(generate + "--top 0", "--top");
  refused(generate + "--seed -1", "--seed");
}

// The name is a file's, whatever YAML would make of it, and is looked at before any weights.
TEST_F(Commands, HeldOutFilesOfAnyName) {
  const std::string eval = "eval " + trained() + " --sequences 2 --data ";
  const std::string usual = succeed(eval + "corpus"), seconds = " (";
  for (const std::string name : {"corpus-valid #2", "*x", "[a", "null", "a: b"}) {
    refused(eval + "'" + name + "'", name + ": no token file");
    for (const char* end : {".bin", ".idx", ".json"})
      std::filesystem::copy_file(directory_ / (std::string("corpus") + end), directory_ / (name + end));
    const std::string same = succeed(eval + "'" + name + "'");
    EXPECT_EQ(same.substr(0, same.find(seconds)), usual.substr(0, usual.find(seconds)));
  }
  refused("convert --retrofit qk_norm=rms --data '*y' " + checkpoint("run", 5) + " out.h5", "*y: no token file");
}

TEST_F(Commands, InspectPrintsTheConfigAndVerifies) {
  const std::string path = trained(), inspect = "inspect " + path + " ";
  const Ended both = keel(inspect + "--config --verify");
  EXPECT_EQ(both.code, 0);
  EXPECT_THAT(both.output, HasSubstr("precision: fp32"));
  EXPECT_THAT(both.output, HasSubstr("every byte of"));
  refused(inspect + "--config --json", "--config");
  refused(inspect + "--config --bounds", "--config");
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto middle = std::streamoff(std::filesystem::file_size(path) / 2);
  file.seekg(middle);
  const int byte = file.get();
  file.seekp(middle);
  file.put(char(byte ^ 1));
  file.close();
  EXPECT_EQ(keel(inspect + "--verify").code, 2);
  EXPECT_EQ(keel(inspect + "--config --verify").code, 2);
}

}  // namespace
}  // namespace keel::testing
