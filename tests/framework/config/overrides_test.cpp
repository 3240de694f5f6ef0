#include "tests/framework/config/config_test.h"

namespace keel::config {
namespace {

Node overridden(const std::string& text, std::vector<std::string> overrides) {
  return with_overrides(parse(text, "c.yaml"), overrides);
}

TEST(Overrides, TakeTheFilesPlaceAndSayWhereTheyCameFrom) {
  Node root = overridden("optimizer: {lr: 1, eps: 2}\n", {"optimizer.lr=3e-4", "stability.qk_clip={tau: 50}"});
  EXPECT_EQ(root["optimizer"]["lr"].text(), "3e-4");
  EXPECT_EQ(root["optimizer"]["eps"].text(), "2");
  EXPECT_EQ(root["stability"]["qk_clip"]["tau"].text(), "50");
  EXPECT_STREQ(root["optimizer"]["lr"].error("bad").what(), "command line: optimizer.lr=3e-4: optimizer.lr: bad");
  EXPECT_EQ(root["optimizer"]["eps"].where(), "c.yaml:1:25");
}

// A tree that was resolved and printed says where the user wrote what it holds.
TEST(Overrides, AResolvedTreeKeepsTheirPlaces) {
  const Node written = overridden("a:\n  b: 1\nl: [x, {p: 1}]\n", {"a.c=2"});
  const Node resolved = parse("l: [x, {p: 1, q: 7}]\na: {d: 4, c: 2, b: 1}\nm: {n: 5}\n", "printed");
  const Node placed = resolved.at_places_of(written);
  EXPECT_EQ(print_line(placed), print_line(resolved));
  EXPECT_STREQ(placed["a"]["b"].error("bad").what(), "c.yaml:2:6: a.b: bad");
  EXPECT_STREQ(placed["a"]["c"].error("bad").what(), "command line: a.c=2: a.c: bad");
  EXPECT_STREQ(placed["a"]["d"].error("bad").what(), "c.yaml:2:3: a.d: bad");  // where its section is
  EXPECT_STREQ(placed["l"][1]["p"].error("bad").what(), "c.yaml:3:12: l[1].p: bad");
  EXPECT_THAT(placed["m"]["n"].error("bad").what(), StartsWith("c.yaml:"));
}

TEST(Overrides, ValuesAreYaml) {
  Node root = overridden("a: 1\nb: 1\nl: [{p: 1}, {p: 2}]\n", {"a=", "b=[x, 'y=z']", "l.1.p=null", "e=a=b"});
  EXPECT_EQ(print_line(root), "{a: null, b: [x, y=z], l: [{p: 1}, {p: null}], e: a=b}");
}

TEST(Overrides, TheSameRulesHold) {
  EXPECT_THAT(override_error("optimizer.lr=-1"), "command line: optimizer.lr=-1: optimizer.lr: must be > 0, is -1");
  EXPECT_THAT(override_error("optimizer.learning_rat=1"),
              AllOf(StartsWith("command line: optimizer.learning_rat=1: "), HasSubstr("did you mean lr?")));
  EXPECT_THAT(override_error("optimzer.lr=1"),
              AllOf(StartsWith("command line: optimzer.lr=1: optimzer: "), HasSubstr("did you mean optimizer?")));
  EXPECT_THAT(override_error("lr=1"), HasSubstr("it belongs in optimizer.lr"));
  EXPECT_THAT(override_error("stability.spike={sigmas: 6, sigmas: 7}"), HasSubstr("duplicate"));
  EXPECT_THAT(override_error("data.train=[a"), StartsWith("command line: data.train=[a: "));
  EXPECT_THAT(override_error("name=\xff"), HasSubstr("UTF-8"));
}

TEST(Overrides, MalformedOrContradicting) {
  EXPECT_EQ(override_error("train.steps"), "command line: train.steps: write section.key=value");
  EXPECT_EQ(override_error("=3"), "command line: =3: write section.key=value");
  for (const char* text : {"train..steps=3", "train.steps.=3", "train.=3", ".=3"})
    EXPECT_THAT(override_error(text), HasSubstr("no key"));
  EXPECT_THAT(override_error("train.steps.x=3"), HasSubstr("train.steps is a single value"));
  EXPECT_THAT(override_error("a" + std::string(200, '.') + "=3"), HasSubstr("command line"));
  for (std::vector<std::string> twice : {std::vector<std::string>{"train.steps=3", "train.steps=4"},
                                         {"train={steps: 3}", "train.steps=4"},
                                         {"train.steps=4", "train={}"}})
    EXPECT_THAT(message_of([&] { overridden(minimal, twice); }),
                AllOf(StartsWith("command line: " + twice[1]), HasSubstr("set twice")));
  EXPECT_NO_THROW(overridden(minimal, {"train.steps=4", "train.steps_more=4"}))
      << "a prefix of a name is no prefix of a path";
}

}  // namespace
}  // namespace keel::config
