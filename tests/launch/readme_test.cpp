// What README.md and its neighbours show to be typed, as it stands there.
#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "launch/common/run_setup.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// What a section of README.md shows to be typed: its indented blocks, without their indentation.
std::vector<std::string> blocks_of(const std::string& section) {
  std::ifstream file(KEEL_SOURCE_DIR "/README.md");
  std::vector<std::string> blocks;
  bool inside = false, in_block = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) inside = line == "## " + section;
    const bool shown = inside && line.starts_with("    ");
    if (shown && !in_block) blocks.emplace_back();
    if (shown) blocks.back() += line.substr(4) + "\n";
    in_block = shown;
  }
  return blocks;
}

// A command with what the README says about it cut off.
std::string without_remark(const std::string& line) {
  return line.substr(0, line.find("   "));
}

class Readme : public RunFixture {};

// The command in backticks that makes the config.
std::string copying_command() {
  std::ifstream file(KEEL_SOURCE_DIR "/README.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::smatch found;
  return std::regex_search(text, found, std::regex("`(cp configs/quickstart.yaml [^`]+)`")) ? found[1].str() : "false";
}

// With the quickstart's data in its place: a small text. Its model is made as small.
TEST_F(Readme, YourOwnAblation) {
  namespace fs = std::filesystem;
  for (const char* folder : {"configs", "data", "build-release/launch"}) fs::create_directories(directory_ / folder);
  fs::copy(KEEL_SOURCE_DIR "/configs/quickstart.yaml", directory_ / "configs");
  fs::create_symlink(KEEL_PROGRAM, directory_ / "build-release/launch/keel");
  ASSERT_EQ(keel("tokenize text.txt --out data/quickstart --valid 0.1").code, 0);

  const std::vector<std::string> blocks = blocks_of("Your own ablation");
  ASSERT_EQ(blocks.size(), 2u) << "a section for the config, and commands";
  ASSERT_EQ(run_command(fmt::format("cd {} && {}", directory_.string(), copying_command())).code, 0);
  ASSERT_TRUE(fs::exists(directory_ / "configs/mine.yaml"));
  std::ofstream(directory_ / "configs/mine.yaml", std::ios::app) << blocks[0];

  std::string variables, list;
  int trained = 0;
  std::istringstream commands(blocks[1]);
  for (std::string line; std::getline(commands, line);) {
    line = without_remark(line);
    if (!line.starts_with("$keel")) {
      variables += line + "; ";
      continue;
    }
    const bool trains = line.starts_with("$keel ablate") && line.find("--list") == std::string::npos;
    const std::string small = " model.hidden=24 model.layers=1 model.ffn=32 data.sequence_length=32 batch.sequences=4";
    const Ended ended = run_command(fmt::format("cd {} && {}{}{}", directory_.string(), variables, line,
                                                trains ? small + " batch.micro_sequences=4" : ""));
    ASSERT_EQ(ended.code, 0) << line << ": " << ended.output;
    if (trains) {
      ++trained;
      EXPECT_THAT(ended.ours, Contains(HasSubstr("4 of 4 cells finished"))) << ended.output;
    }
    if (line.ends_with("--list")) list = ended.output;
  }
  EXPECT_THAT(list, HasSubstr("4 cells = 2 arms x 2 optimizer.lr x 1 seeds"));
  EXPECT_THAT(list, HasSubstr("model.attention.qk_norm.kind: "));
  EXPECT_EQ(trained, 1);
  EXPECT_TRUE(fs::exists(directory_ / "runs/mine/report.html"));
  EXPECT_TRUE(fs::exists(directory_ / "runs/mine/cells.csv"));
}

// The ranks and overrides of each line that trains the quickstart's model.
struct Shown {
  std::string line;
  int ranks = 1;
  std::vector<std::string> overrides;
};
std::vector<Shown> shown_trainings() {
  std::vector<Shown> shown;
  const std::regex command("(mpirun .*-n ([0-9]+) )?keel train configs/quickstart.yaml( .*)?");
  for (const char* name : {"/README.md", "/launch/README.md", "/configs/README.md"}) {
    std::ifstream file(std::string(KEEL_SOURCE_DIR) + name);
    for (std::string line; std::getline(file, line);) {
      std::smatch found;
      if (!line.starts_with("    ") || !std::regex_match(line = without_remark(line.substr(4)), found, command))
        continue;
      Shown& next = shown.emplace_back(line, found[2].matched ? std::stoi(found[2]) : 1);
      std::istringstream overrides(found[3].str());
      for (std::string word; overrides >> word;) next.overrides.push_back(word);
    }
  }
  return shown;
}

// Without the text: an id more or less decides about no layout.
config::Layout layout_of(std::vector<std::string> overrides, int ranks) {
  overrides.push_back("model.vocab=8192");
  return layout_for(read_full_config(KEEL_SOURCE_DIR "/configs/quickstart.yaml", overrides), ranks);
}

TEST(ReadmeLayouts, CommandsFitTheQuickstart) {
  const std::vector<Shown> shown = shown_trainings();
  EXPECT_GE(shown.size(), 6u);
  for (const auto& [line, ranks, overrides] : shown)
    EXPECT_NO_THROW(EXPECT_EQ(layout_of(overrides, ranks).tensor * layout_of(overrides, ranks).data, ranks)) << line;
  for (const int ranks : {1, 2, 4, 8})  // "also on another number of ranks or another split"
    for (const int tensor : {1, 2, 4}) {
      if (ranks % tensor != 0) continue;
      EXPECT_NO_THROW(layout_of({fmt::format("parallel.tensor={}", tensor)}, ranks)) << ranks << " ranks, " << tensor;
    }
}

// What setup.sh installs, README.md names.
TEST(ReadmeDependencies, NameEveryPackage) {
  const auto read = [](const char* name) {
    std::ifstream file(std::string(KEEL_SOURCE_DIR) + name);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const std::string setup = read("/launch/setup.sh"), readme = read("/README.md");
  const size_t begin = setup.find("packages=\"") + 10, table = readme.find("\n## Dependencies\n");
  ASSERT_NE(table, std::string::npos);
  std::set<std::string> named;
  std::istringstream words(
      std::regex_replace(readme.substr(table, readme.find("\n## ", table + 1) - table), std::regex("[,|]"), " "));
  for (std::string word; words >> word;) named.insert(word);
  std::istringstream packages(setup.substr(begin, setup.find('"', begin) - begin));
  int count = 0;
  for (std::string package; packages >> package; ++count) EXPECT_TRUE(named.contains(package)) << package;
  EXPECT_GT(count, 20);
}

}  // namespace
}  // namespace keel::testing
