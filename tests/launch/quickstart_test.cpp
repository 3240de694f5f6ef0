// quickstart.sh without its packages and its build: the program that is here, with a small model, in a tree of its own.
#include <gmock/gmock.h>

#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class Quickstart : public RunFixture {
 protected:
  void SetUp() override {
    RunFixture::SetUp();
    for (const char* folder : {"launch", "configs", "data", "build-release/launch", "stubs"})
      fs::create_directories(directory_ / folder);
    for (const char* file : {"launch/quickstart.sh", "launch/setup.sh", "configs/quickstart.yaml"})
      fs::copy_file(fs::path(KEEL_SOURCE_DIR) / file, directory_ / file);
    // A text of a few thousand words has no vocabulary of 8192: bytes.
    script("build-release/launch/keel", fmt::format(R"(case "$1" in
  tokenize) exec {0} "$1" "$2" "$3" "$4" "$5" "$6" ;;
  train) exec {0} "$@" model.hidden=24 model.layers=1 model.ffn=32 data.sequence_length=32 batch.sequences=4 \
    schedule.warmup_steps=1 train.steps=4 eval.every=4 checkpoint.every=4 ;;
  *) exec {0} "$@" ;;
esac)",
                                                    KEEL_PROGRAM));
  }

  void script(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name) << "#!/bin/sh\n" << text << "\n";
    fs::permissions(directory_ / name, fs::perms::owner_all);
  }

  Ended run(const std::string& command) {
    return run_command(fmt::format("cd {} && PATH=$PWD/stubs:$PATH {}", directory_.string(), command));
  }

  Ended quickstart(const std::string& text) {
    std::ofstream(directory_ / "launch/setup.sh", std::ios::app) << "install_packages() { :; }\nbuild() { :; }\n";
    return run("./launch/quickstart.sh " + text);
  }

  std::vector<std::string> runs() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_ / "runs")) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
};

// Each text has its own tokens and run, however old its file is, and goes on with them.
TEST_F(Quickstart, TrainsOnTheTextThatItIsGiven) {
  fs::copy_file(directory_ / "text.txt", directory_ / "data/gcide.txt");
  const Ended dictionary = quickstart("");
  ASSERT_EQ(dictionary.code, 0) << dictionary.output;
  EXPECT_THAT(runs(), ElementsAre("quickstart"));
  const std::vector<double> losses = metric("quickstart", "loss");
  ASSERT_EQ(losses.size(), 4u);

  fs::copy_file(directory_ / "corpus.bin", directory_ / "my own.text.txt");  // other bytes
  fs::last_write_time(directory_ / "my own.text.txt", fs::file_time_type::clock::now() - std::chrono::hours(48));
  for (const bool again : {false, true}) {
    const Ended ended = quickstart("'my own.text.txt'");
    ASSERT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(runs(), ElementsAre(MatchesRegex("my_own_text-........"), "quickstart"));
    EXPECT_THAT(ended.output, HasSubstr("your text is my_own_text-"));
    EXPECT_EQ(ended.output.find("turning the text into tokens") == std::string::npos, again);
    const std::string name = runs()[0];
    std::ifstream file(directory_ / "runs" / name / "config.yaml");
    const std::string config{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(config, HasSubstr("data/" + name + "\n"));
    EXPECT_THAT(config, HasSubstr("data/" + name + "-valid\n"));
    EXPECT_EQ(metric(name, "loss").size(), 4u);
    EXPECT_NE(metric(name, "loss"), losses);
  }

  std::ofstream(directory_ / "my own.text.txt", std::ios::app) << "more";
  const Ended changed = quickstart("'my own.text.txt'");
  EXPECT_EQ(changed.code, 0) << changed.output;
  EXPECT_EQ(runs().size(), 3u);
  EXPECT_EQ(metric("quickstart", "loss"), losses);
}

TEST_F(Quickstart, RefusesATextThatIsEmpty) {
  std::ofstream(directory_ / "empty.txt");
  const Ended ended = quickstart("empty.txt");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.output, HasSubstr("empty.txt: not a file with text in it"));
}

// apt-get knows no package before its lists are there.
TEST_F(Quickstart, FetchesTheDictionaryWithoutPackageLists) {
  const std::string here = directory_.string();
  script("stubs/id", "echo 0");
  script("stubs/apt-get", fmt::format(R"(case "$*" in
  *update*) touch {0}/lists ;;
  *download*) [ -e {0}/lists ] || exit 100; touch dict-gcide_1_all.deb ;;
esac)",
                                      here));
  script("stubs/dpkg-deb",
         fmt::format("mkdir -p usr/share/dictd && gzip -c {}/text.txt >usr/share/dictd/gcide.dict.dz", here));
  const Ended ended = quickstart("");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_TRUE(fs::exists(directory_ / "lists"));
  EXPECT_EQ(fs::file_size(directory_ / "data/gcide.txt"), fs::file_size(directory_ / "text.txt"));
}

// sudo hands on no variables, and an installation that asks would wait for ever.
TEST_F(Quickstart, InstallsThroughSudoWithoutQuestions) {
  script("stubs/id", "echo 1000");
  script("stubs/sudo", R"(exec env -i PATH="$PATH" "$@")");
  script("stubs/dpkg-query", "exit 1");
  script("stubs/apt-get", fmt::format(R"(echo "$1 ${{DEBIAN_FRONTEND:-}}" >>{}/asked)", directory_.string()));
  const Ended ended = run("bash -c 'source launch/setup.sh && install_packages'");
  EXPECT_EQ(ended.code, 0) << ended.output;
  std::ifstream asked(directory_ / "asked");
  std::vector<std::string> lines;
  for (std::string line; std::getline(asked, line);) lines.push_back(line);
  EXPECT_THAT(lines, ElementsAre("update ", "install noninteractive"));
}

}  // namespace
}  // namespace keel::testing
