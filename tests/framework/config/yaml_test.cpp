#include "framework/config/yaml.h"

#include "tests/framework/config/config_test.h"

namespace keel::config {
namespace {

TEST(Parse, NodesKnowPathAndPlace) {
  Node root = parse("a:\n  b: [x, {c: 'y z'}]\n  n:\n", "c.yaml");
  EXPECT_EQ(root["a"]["b"][0].text(), "x");
  Node c = root["a"]["b"][1]["c"];
  EXPECT_EQ(c.text(), "y z");
  EXPECT_EQ(c.path(), "a.b[1].c");
  EXPECT_EQ(c.where(), "c.yaml:2:14");
  EXPECT_EQ(root["a"]["n"].kind(), Node::Kind::null);
  EXPECT_EQ(root.find("a.b.1.c").text(), "y z");
  EXPECT_STREQ(c.error("is {}", 3).what(), "c.yaml:2:14: a.b[1].c: is 3");
  EXPECT_STREQ(c.key_error("bad").what(), "c.yaml:2:11: a.b[1].c: bad");
}

TEST(Parse, MissingNodesPointAtTheNearestSectionThatWasWritten) {
  Node root = parse("x: 1\na:\n  b: 2\n", "c.yaml");
  Node missing = root["a"]["p"]["q"];
  EXPECT_FALSE(missing.exists());
  EXPECT_STREQ(missing.error("missing").what(), "c.yaml:3:3: a.p.q: missing");
  EXPECT_STREQ(Node()["lr"].error("bad").what(), "lr: bad");
}

TEST(Duplicates, AreRefusedAtEveryDepthWithBothLines) {  // CASES R56
  EXPECT_THAT(parse_error("optimizer:\n  lr: 1\n  eps: 1\n  lr: 2\n"),
              AllOf(StartsWith("c.yaml:4:3: optimizer.lr: "), HasSubstr("line 2"), HasSubstr("line 4")));
  EXPECT_THAT(parse_error("model: {a: 1}\ndata: {}\nmodel: {a: 1}\n"),
              AllOf(StartsWith("c.yaml:3:1: model: "), HasSubstr("line 1"), HasSubstr("line 3")));
  EXPECT_THAT(parse_error("base: &base\n  a:\n    b: 1\n    'b': 2\nuse: *base\n"),
              AllOf(StartsWith("c.yaml:4:5: base.a.b: "), HasSubstr("line 3"), HasSubstr("line 4")));
  EXPECT_THAT(parse_error("l:\n- {a: 1}\n- {a: 1,\n   a: 2}\n"),
              AllOf(StartsWith("c.yaml:4:4: l[1].a: "), HasSubstr("line 3")));
  EXPECT_THAT(parse_error("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n"), HasSubstr("<<: [*first, *second]"));
}

TEST(MergeKeys, OwnKeysWinWhereverTheyStand) {
  Node root = parse("base: &b {x: 1, y: 2}\none:\n  <<: *b\n  x: 9\ntwo:\n  x: 9\n  <<: *b\n", "c.yaml");
  for (const char* section : {"one", "two"}) {
    EXPECT_EQ(root[section]["x"].text(), "9");
    EXPECT_EQ(root[section]["y"].text(), "2");
    EXPECT_EQ(root[section].size(), 2u);
    EXPECT_FALSE(root[section]["<<"].exists());
  }
  EXPECT_EQ(root["one"]["y"].where(), "c.yaml:1:20");
}

TEST(MergeKeys, TheFirstOfAListWinsAndMergesNest) {
  Node root = parse("a: &a {x: 1}\nb: &b {<<: *a, x: 2, y: 2}\nc: {<<: [*a, *b], z: 3}\nd: {<<: [*b, *a]}\n", "c.yaml");
  EXPECT_EQ(root["c"]["x"].text(), "1");
  EXPECT_EQ(root["c"]["y"].text(), "2");
  EXPECT_EQ(root["d"]["x"].text(), "2");
  EXPECT_THAT(parse_error("a: &a [1]\nb:\n  <<: *a\n"), AllOf(StartsWith("c.yaml:3:"), HasSubstr("<<")));
  EXPECT_THAT(parse_error("b:\n  <<: 3\n"), HasSubstr("needs a map"));
  EXPECT_EQ(parse("a: {'<<': 3}\n", "c.yaml")["a"]["<<"].text(), "3") << "a quoted << is a key like any other";
}

TEST(Aliases, RepeatValues) {
  Node root = parse("a: &x 5\nb: *x\nc: [*x, &y {k: v}, *y]\n", "c.yaml");
  EXPECT_EQ(root["b"].text(), "5");
  EXPECT_EQ(root["c"][2]["k"].text(), "v");
  EXPECT_EQ(root["c"][2]["k"].path(), "c[2].k");
  EXPECT_THAT(parse_error("a: *nobody\n"), StartsWith("c.yaml:1:4: a: "));
  EXPECT_THAT(parse_error("a: &x {b: *x}\n"), HasSubstr("inside the value that it repeats"));
}

TEST(With, ReplacesAndMakesSections) {
  Node root = parse("a: {b: 1, c: 2}\nl: [1, {p: 2}]\n", "c.yaml");
  Node value = parse("v: 7\n", "arm")["v"];
  Node changed = root.with("a.b", value).with("l.1.p", value).with("new.deep.key", value);
  EXPECT_EQ(print_line(changed), "{a: {b: 7, c: 2}, l: [1, {p: 7}], new: {deep: {key: 7}}}");
  EXPECT_EQ(print_line(root), "{a: {b: 1, c: 2}, l: [1, {p: 2}]}") << "the tree it came from is untouched";
  EXPECT_STREQ(changed["a"]["b"].error("x").what(), "arm:1:4: a.b: x");
  EXPECT_THAT(message_of([&] { root.with("a.b.c", value); }),
              AllOf(StartsWith("arm:1:4"), HasSubstr("a.b is a single value")));
  EXPECT_THAT(message_of([&] { root.with("l.2", value); }), HasSubstr("list of 2"));
  EXPECT_THAT(message_of([&] { root.with("a..c", value); }), HasSubstr("no key"));
  EXPECT_THAT(message_of([&] { root.with("", value); }), HasSubstr("no key"));
}

TEST(With, ASectionOverASectionChangesTheKeysItHas) {
  Node root = parse("a: {b: 1, c: {d: 2, e: 3}}\nl: [1]\n", "c.yaml");
  Node arm = parse("a.c: {d: 9}\na.f: {g: 5}\nl: [2, 3]\nx.y: {z: 1}\n", "arm");
  EXPECT_EQ(print_line(root.with_all(arm)), "{a: {b: 1, c: {d: 9, e: 3}, f: {g: 5}}, l: [2, 3], x: {y: {z: 1}}}");
  EXPECT_EQ(print_line(root.with("a.c", Node::make_null())["a"]), "{b: 1, c: null}");
  EXPECT_EQ(print_line(root.with("a", parse("3", "arm"))["a"]), "3");
  EXPECT_EQ(root.with_all(arm)["a"]["c"]["d"].where(), "arm:1:10");
  EXPECT_EQ(print_line(root.with_all(Node())), print_line(root));
  EXPECT_THAT(message_of([&] { root.with_all(arm["l"]); }), StartsWith("arm:3:4: l: needs a map"));
}

TEST(With, NothingIsSetTwice) {
  const Node root = parse("a: {b: 1, c: 2}\nl: [{p: 1}]\n", "c.yaml");
  EXPECT_EQ(message_of([&] { root.with_all(parse("a: {b: 3}\na.b: 4\n", "arm")); }),
            "arm:2:1: a.b: set twice, also by a");
  EXPECT_EQ(message_of([&] { root.with_all(parse("l.0.p: 4\nl: []\n", "arm")); }),
            "arm:2:1: l: set twice, also by l.0.p");
  EXPECT_EQ(print_line(root.with_all(parse("a.b: 3\na.bc: 4\n", "arm"))), "{a: {b: 3, c: 2, bc: 4}, l: [{p: 1}]}")
      << "a prefix of a name is no prefix of a path";
}

TEST(With, LeavesWhatSharesAnAnchorAlone) {
  Node root = parse("a: &x {k: 1}\nb: *x\n", "c.yaml");
  Node changed = root.with("b.k", Node::make_text("2"));
  EXPECT_EQ(changed["a"]["k"].text(), "1");
  EXPECT_EQ(changed["b"]["k"].text(), "2");
}

TEST(Print, QuotesWhatWouldReadBackAsSomethingElse) {
  for (std::string text : {"",         "null", "~",    "Null", "true", "a: b", "- a",  "#x",
                           "a #b",     "'",    "\"",   "\\",   "*a",   "&a",   "!t",   "%",
                           "@",        "`",    "a\nb", "\n",   " x ",  "\t",   "x\t",  "{",
                           "[1]",      "|",    ">",    "?",    "---",  "...",  "<<",   "é\u2028\u0085\ufeff",
                           "\x01\x7f", "1e-4", "a,b",  ":",    "-",    "=",    "0x10", "\r\n"}) {
    Node tree =
        Node::make_map({{text.empty() ? "k" : text, Node::make_list({Node::make_text(text), Node::make_map({})})},
                        {"k2", Node::make_text(text)}});
    for (const std::string& printed : {print(tree), print_line(tree)}) {
      Node back = parse(printed, "printed");
      ASSERT_EQ(back["k2"].kind(), Node::Kind::text) << printed;
      EXPECT_EQ(back["k2"].text(), text) << printed;
      EXPECT_EQ(back[0][0].text(), text) << printed;
      EXPECT_EQ(back.keys(), tree.keys()) << printed;
    }
  }
}

TEST(InQuotes, IsOneShortLine) {
  EXPECT_EQ(in_quotes("a\nb"), "'a b'");
  std::string accents;
  for (int i = 0; i < 100; ++i) accents += "é";
  EXPECT_EQ(in_quotes("x" + accents).size(), 2 + 59 + 3u) << "cut between characters, not inside one";
}

}  // namespace
}  // namespace keel::config
