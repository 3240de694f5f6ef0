// Texts that are broken, or made to break a reader: always one line, never a crash.
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/framework/config/config_test.h"

namespace keel::config {
namespace {

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

class ConfigFile : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return path_;
  }
  std::string load_error(const std::string& text) {
    return message_of([&] { load_run_config(write(text)); });
  }
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ = ::testing::TempDir() + "keel_config_test.yaml";
};

TEST_F(ConfigFile, EmptyListOrText) {  // CASES R54
  for (const char* text : {"", "\n\n", "# nothing\n", "---\n", "null\n", "~"})
    EXPECT_THAT(load_error(text), AllOf(StartsWith(path_ + ":"), HasSubstr("empty"))) << text;
  EXPECT_THAT(load_error("- a\n- b\n"), AllOf(StartsWith(path_ + ":1:1: "), HasSubstr("is a list")));
  EXPECT_THAT(load_error("lr:1e-4\n"), HasSubstr("a space is missing after the colon"));
  EXPECT_THAT(load_error("a config"), HasSubstr("'a config'"));
}

TEST_F(ConfigFile, ThatCannotBeRead) {
  write(minimal);
  std::string missing = path_.substr(0, path_.size() - 1) + "x";
  EXPECT_THAT(message_of([&] { load(missing); }), AllOf(StartsWith(missing), HasSubstr("did you mean " + path_ + "?")));
  EXPECT_THAT(message_of([&] { load("/nowhere/at/all.yaml"); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of([&] { load(::testing::TempDir()); }), HasSubstr("a directory"));
  EXPECT_THAT(message_of([&] { load("/dev/zero"); }), HasSubstr("1 MiB"));
  EXPECT_EQ(load_run_config(path_).name, "keel_config_test");
}

TEST(Text, TabsInTheIndentation) {  // CASES R54
  EXPECT_THAT(parse_error("a:\n\tb: 1\n"), AllOf(StartsWith("c.yaml:2:1: "), HasSubstr("tab")));
  EXPECT_THAT(parse_error("a:\n  b: 1\n  \tc: 1\n"), StartsWith("c.yaml:3:3: "));
  EXPECT_EQ(parse("a:\t1\n\nb: 2 \t# note\n", "c.yaml")["b"].text(), "2");
}

TEST(Text, IsUtf8WithoutControlCharacters) {
  EXPECT_EQ(parse("\xef\xbb\xbf"
                  "a: é\r\nb: \xf0\x9f\x99\x82\r\n",
                  "c.yaml")["a"]
                .text(),
            "é");
  for (std::string bad : {"\xff", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80",
                          "\xf4\x90\x80\x80", "\xf0\x80\x80\x80", "\x80", "\xe2\x82"})
    EXPECT_THAT(parse_error("x: 1\na: " + bad + "\n"), AllOf(StartsWith("c.yaml:2:4: "), HasSubstr("UTF-8")));
  // yaml-cpp takes 0x04 for the end of the file: what follows would be lost without a word.
  EXPECT_THAT(parse_error("a: b\x04\nlr: 3\n"), AllOf(StartsWith("c.yaml:1:5: "), HasSubstr("0x04")));
  EXPECT_THAT(parse_error(std::string("a\0:\0", 4)), HasSubstr("UTF-16"));
}

TEST(Text, OneDocumentWithoutTags) {
  EXPECT_THAT(parse_error("---\na: 1\n---\na: 2\n"), HasSubstr("second document"));
  EXPECT_THAT(parse_error("  a: 1\n b: 2\n"), AllOf(StartsWith("c.yaml:2:"), HasSubstr("indented less")));
  EXPECT_EQ(parse("---\na: 1\n...\n", "c.yaml")["a"].text(), "1");
  EXPECT_THAT(parse_error("a: !!int 1\n"), HasSubstr("tag"));
  EXPECT_THAT(parse_error("a: !x {b: 1}\n"), HasSubstr("tag"));
}

TEST(Text, BrokenSyntaxHasLineAndColumn) {
  for (std::string bad :
       {"a: [1, 2\n", "a: {b: 1\n", "a: \"x\n", "a: b: c\n", "@a: 1\n", ": 3\n", "? [a]\n: 1\n", "a: b\n  c: d\n",
        "%YAML 9.9\n---\na: 1", "a: ]\n", "a: 'x'y\n", "{a: 1}}", "a: &\n", "*a : 1\n", "&a : 1\n"})
    EXPECT_THAT(parse_error(bad), ::testing::MatchesRegex("c\\.yaml:[0-9]+:[0-9]+: .+")) << bad;
}

TEST(Text, AQuoteThatIsNeverClosedDoesNotSwallowTheRest) {
  for (std::string bad : {"name: \"x\nseed: 3\nlr: 4\n", "name: 'x\nseed: 3", "a:\n  name: 'it''s\n  b: 1\n"})
    EXPECT_THAT(parse_error(bad), AllOf(HasSubstr("name: not valid YAML"), HasSubstr("quote or bracket is not closed")))
        << bad;
  EXPECT_EQ(parse("a: 'x\n  y'\nb: |+\n  z\n\n", "c.yaml")["b"].text(), "z\n\n");
}

TEST(Bombs, DepthAliasesAndSize) {
  EXPECT_THAT(parse_error(repeated("[", 1000000)), StartsWith("c.yaml:1:"));
  EXPECT_THAT(parse_error(repeated("- ", 400000)), HasSubstr("deeper than 64"));
  EXPECT_THAT(parse_error("a: " + repeated("[", 70) + repeated("]", 70)), HasSubstr("deeper than 64"));
  EXPECT_THAT(parse_error(repeated("{a: ", 200000)), StartsWith("c.yaml:1:"));
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 30; ++i)
    bomb += fmt::format("a{0}: &a{0} [{1}*a{2}]\n", i, repeated(fmt::format("*a{},", i - 1), 9), i - 1);
  EXPECT_THAT(parse_error(bomb), AllOf(StartsWith("c.yaml:"), HasSubstr("100000 values")));
  EXPECT_THAT(parse_error(repeated("a: 1\n", 300000)), HasSubstr("1 MiB"));
  EXPECT_THAT(parse_error("a: " + repeated("x", 1100000)), HasSubstr("1 MiB"));
}

TEST(Bombs, MessagesStayShort) {
  std::string deep;
  for (int i = 0; i < 60; ++i) deep += std::string(size_t(i), ' ') + repeated("long_key", 5) + ":\n";
  EXPECT_LT(parse_error(deep + std::string(60, ' ') + "a: 1\n" + std::string(60, ' ') + "a: 1\n").size(), 400u);
  EXPECT_LT(override_error("train.steps=" + repeated("9", 5000)).size(), 400u + 5000u);
  EXPECT_THAT(override_error("data.train=[{'a\\nb': 1}]"), HasSubstr("unknown key"));
}

// Random damage to a good file ends in a config or in an input error, whatever the bytes.
TEST(Fuzz, DamagedFiles) {
  const std::string good =
      "base: &b {lr: 1e-3, <<: {eps: 1e-8}}\n" + minimal +
      "optimizer:\n  <<: *b\n  kind: adamw # note\nstability: {spike: {sigmas: '6'}, qk_clip: null}\n"
      "checkpoint:\n  mpi_hints: {\"a\": b}\n  resume: |\n    x\n    y\neval: {every: >-\n  3}\n";
  const std::string pieces[] = {"\t",   "\n",   ": ", "- ",  "[",   "]", "{",    "}", "&b ", "*b",
                                "<<",   "|",    ">",  "'",   "\"",  "#", "!",    "%", "?",   "\\",
                                "\xff", "\x04", "é",  "---", "...", "~", "null", ",", "  "};
  std::mt19937 random(7);
  int accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string text = good;
    for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
      size_t at = random() % text.size();
      size_t length = std::min<size_t>(random() % 5, text.size() - at);
      text.replace(at, length, pieces[random() % std::size(pieces)]);
      if (text.empty()) text = "a";
    }
    try {
      run_config_of(text);
      ++accepted;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::input) << text << "\n" << error.what() << error.where();
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << text;
    }
  }
  EXPECT_LT(accepted, 6000);
}

}  // namespace
}  // namespace keel::config
