// The README's way to an ablation of one's own, as it stands there.
#include <gmock/gmock.h>

#include <regex>

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

}  // namespace
}  // namespace keel::testing
