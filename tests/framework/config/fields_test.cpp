// The description of a struct and all that follows from it, on structs of this test's own.
#include "framework/config/fields.h"

#include "tests/framework/config/config_test.h"

namespace keel::config {

namespace zoo {

enum class Color { red, green, dark_blue };
std::vector<std::string> enum_names(Color) {
  return {"red", "green", "dark_blue"};
}
enum class Start { automatic, log2_length };
std::vector<std::string> enum_names(Start) {
  return {"auto", "log2_length"};
}

struct Inner {
  double scale = 0.5;
  int small = 3;
};
void describe(Fields& fields, Inner& c) {
  fields.add("scale", c.scale,
             {.doc = "A scale.",
              .range = {.low = 0, .high = 1, .high_open = true},
              .on_resume = OnResume::changeable,
              .synonyms = {"factor"}});
  fields.add("small", c.small, {.doc = "A | bar.", .unit = "apples", .on_resume = OnResume::ignored});
}

struct Item {
  std::string path;
  double weight = 1;
};
void describe(Fields& fields, Item& c) {
  fields.add("path", c.path, {.doc = "Where.", .required = true, .shorthand = true});
  fields.add("weight", c.weight, {.doc = "How much.", .range = above(0)});
}

struct Outer {
  bool flag = false;
  int64_t count = 7;
  uint8_t byte = 1;
  std::string text = "x";
  Color color = Color::green;
  Inner inner;
  std::optional<Inner> maybe;
  std::optional<double> limit = 2.0;
  Auto<int64_t> chosen;
  std::variant<Start, double> start = Start::automatic;
  std::vector<int64_t> numbers = {1, 2};
  std::vector<Item> items;
  std::map<std::string, double> weights;
  std::chrono::seconds time{90};
};
void describe(Fields& fields, Outer& c) {
  fields.add("flag", c.flag, {.doc = "d"});
  fields.add("count", c.count, {.doc = "d", .range = at_least(0)});
  fields.add("byte", c.byte, {.doc = "d"});
  fields.add("text", c.text, {.doc = "d"});
  fields.add("color", c.color, {.doc = "d"});
  fields.add("inner", c.inner, {.doc = "d"});
  fields.add("maybe", c.maybe, {.doc = "d"});
  fields.add("limit", c.limit, {.doc = "d", .range = above(0), .on_resume = OnResume::changeable});
  fields.add("chosen", c.chosen, {.doc = "d", .range = at_least(1)});
  fields.add("start", c.start, {.doc = "d"});
  fields.add("numbers", c.numbers, {.doc = "d", .range = at_least(0)});
  fields.add("items", c.items, {.doc = "d"});
  fields.add("weights", c.weights, {.doc = "d", .range = between(0, 1)});
  fields.add("time", c.time, {.doc = "d", .range = at_least(1)});
}

}  // namespace zoo

namespace {

using zoo::Outer;

Outer read_outer(const std::string& text, Outer start = {}) {
  read(parse("zoo: " + text, "c.yaml")["zoo"], start);
  return start;
}
std::string outer_error(const std::string& text) {
  return message_of([&] { read_outer(text); });
}

TEST(Read, EveryType) {
  Outer c = read_outer(
      "{flag: true, count: -0, byte: 255, text: no, color: dark_blue, inner: {scale: .25}, maybe: {small: -4}, limit: "
      "null,"
      " chosen: 5, start: 0.125, numbers: [], items: [a, {path: b, weight: 2}], weights: {p: 1, q: 0}, time: 3h50m}");
  EXPECT_TRUE(c.flag);
  EXPECT_EQ(c.count, 0);
  EXPECT_EQ(c.byte, 255);
  EXPECT_EQ(c.text, "no") << "a text is what was written, whatever YAML 1.1 makes of it";
  EXPECT_EQ(c.color, zoo::Color::dark_blue);
  EXPECT_EQ(c.inner.scale, 0.25);
  EXPECT_EQ(c.inner.small, 3);
  EXPECT_EQ(c.maybe.value().small, -4);
  EXPECT_EQ(c.maybe.value().scale, 0.5);
  EXPECT_FALSE(c.limit);
  EXPECT_EQ(c.chosen.value(), 5);
  EXPECT_EQ(std::get<double>(c.start), 0.125);
  EXPECT_TRUE(c.numbers.empty());
  ASSERT_EQ(c.items.size(), 2u);
  EXPECT_EQ(c.items[0].path + c.items[1].path, "ab");
  EXPECT_EQ(c.items[0].weight, 1);
  EXPECT_EQ(c.items[1].weight, 2);
  EXPECT_EQ(c.weights.at("p"), 1);
  EXPECT_EQ(c.time.count(), (3 * 60 + 50) * 60);
  EXPECT_EQ(read_outer("{items: one}").items.at(0).path, "one");
  EXPECT_EQ(std::get<zoo::Start>(read_outer("{start: log2_length}").start), zoo::Start::log2_length);
  EXPECT_TRUE(read_outer("{chosen: auto}").chosen.is_auto());
}

TEST(Read, APresetFillsInAndAKeyInTheFileWins) {
  Outer preset;
  preset.inner = {0.75, 8};
  preset.maybe = zoo::Inner{0.125, 9};
  preset.numbers = {4, 5, 6};
  Outer c = read_outer("{inner: {small: 1}, maybe: {scale: 0}, numbers: [7]}", preset);
  EXPECT_EQ(c.inner.scale, 0.75);
  EXPECT_EQ(c.inner.small, 1);
  EXPECT_EQ(c.maybe->scale, 0);
  EXPECT_EQ(c.maybe->small, 9);
  EXPECT_EQ(c.numbers, std::vector<int64_t>{7});
  EXPECT_FALSE(read_outer("{maybe: null}", preset).maybe);
  EXPECT_EQ(read_outer("{inner: null}", preset).inner.scale, 0.75) << "an empty section changes nothing";
}

TEST(Read, WrongTypesNameWhatIsNeededAndWhatIsThere) {
  const std::pair<const char*, const char*> cases[] = {
      {"{flag: no}", "c.yaml:1:13: zoo.flag: needs true or false, is 'no' (write false)"},
      {"{flag: Yes}", "needs true or false, is 'Yes' (write true)"},
      {"{flag: on}", "(write true)"},
      {"{flag: TRUE}", "(write true)"},
      {"{flag: 1}", "(write true)"},
      {"{flag: [a]}", "needs true or false, is a list"},
      {"{flag: }", "needs true or false, is null"},
      {"{count: abc}", "zoo.count: needs an integer, is 'abc' (a whole number in decimal digits)"},
      {"{count: -1}", "zoo.count: must be >= 0, is -1"},
      {"{byte: 256}", "zoo.byte: must be between 0 and 255, is 256"},
      {"{inner: {small: 3000000000}}", "zoo.inner.small: must be between -2147483648 and 2147483647, is 3000000000"},
      {"{color: darkblue}", "needs red, green or dark_blue, is 'darkblue' (did you mean dark_blue?)"},
      {"{color: 2}", "needs red, green or dark_blue, is '2'"},
      {"{inner: 3}", "zoo.inner: needs a section of keys, is '3'"},
      {"{inner: [1]}", "zoo.inner: needs a section of keys, is a list"},
      {"{inner: {scale: 1}}", "zoo.inner.scale: must be 0 <= x < 1, is 1"},
      {"{inner: {scale: null}}", "zoo.inner.scale: needs a number, is null"},
      {"{maybe: x}", "zoo.maybe: needs a section of keys or null, is 'x'"},
      {"{maybe: {small: x}}", "zoo.maybe.small: needs an integer, is 'x' (a whole"},
      {"{limit: x}", "zoo.limit: needs a number or null, is 'x'"},
      {"{limit: nul}", "(did you mean null?)"},
      {"{chosen: atuo}", "zoo.chosen: needs an integer or auto, is 'atuo' (did you mean auto?)"},
      {"{chosen: 0}", "zoo.chosen: must be >= 1, is 0"},
      {"{start: log2length}",
       "zoo.start: needs a number, auto or log2_length, is 'log2length' (did you mean log2_length?)"},
      {"{numbers: 3}", "zoo.numbers: needs list of integer, is '3'"},
      {"{numbers: [1, -2]}", "zoo.numbers[1]: must be >= 0, is -2"},
      {"{items: [{weight: 1}]}", "c.yaml:1:15: zoo.items[0].path: missing, and has no default: Where."},
      {"{items: [{path: a, weight: 0}]}", "zoo.items[0].weight: must be > 0, is 0"},
      {"{items: [{path: a, wieght: 0}]}",
       "zoo.items[0].wieght: unknown key 'wieght' in section zoo.items[0] (did you mean weight?)"},
      {"{weights: [1]}", "zoo.weights: needs map of names to number, is a list"},
      {"{weights: {p: 2}}", "zoo.weights.p: must be 0 <= x <= 1, is 2"},
      {"{text: [a]}", "zoo.text: needs text, is a list"},
      {"{text: null}", "zoo.text: needs text, is null"},
      {"{text: \"a\\0b\"}", "zero byte"},
      {"{time: 90}", "zoo.time: needs a duration such as 3h50m, is '90' (write 90s, 90m or 90h)"},
      {"{time: 0s}", "zoo.time: must be >= 1, is 0s"},
  };
  for (auto [text, expected] : cases) EXPECT_THAT(outer_error(text), HasSubstr(expected)) << text;
}

TEST(Read, UnknownKeys) {
  EXPECT_THAT(outer_error("{inner: {factr: 1}}"), HasSubstr("(did you mean scale?)")) << "by a synonym";
  EXPECT_THAT(outer_error("{Inner: {}}"), HasSubstr("(did you mean inner?)"));
  EXPECT_THAT(outer_error("{weight: 1}"), HasSubstr("did you mean weights? or it belongs in zoo.items.weight"));
  EXPECT_THAT(outer_error("{small: 1}"), HasSubstr("it belongs in zoo.inner.small or zoo.maybe.small"));
  EXPECT_THAT(outer_error("{inner: {qqqq: 1}}"), HasSubstr("(known here: scale, small)"));
  Outer c;
  std::vector<KnownKey> elsewhere = known_keys<zoo::Inner>("model.attention");
  EXPECT_THAT(message_of([&] { read(parse("{factor: 3}", "c.yaml"), c, elsewhere); }),
              HasSubstr("inner.scale, maybe.scale or model.attention.scale"));
}

TEST(Durations, UnitsInOrder) {
  const std::pair<const char*, int64_t> good[] = {{"90s", 90},          {"3h50m", 13800}, {"1d", 86400},
                                                  {"2d1h1m1s", 176461}, {"05m", 300},     {"100m", 6000}};
  for (auto [text, seconds] : good)
    EXPECT_EQ(read_outer(fmt::format("{{time: {}}}", text)).time.count(), seconds) << text;
  for (const char* bad :
       {"", "m", "3h50", "50m3h", "1.5h", "-3h", "3 h", "3H", "3h3h", "99999999999999999999s", "999999999999d", "h3"})
    EXPECT_THAT(outer_error(fmt::format("{{time: '{}'}}", bad)), HasSubstr("needs a duration")) << bad;
}

TEST(Write, IsTheWholeStructAndReadsBack) {
  Outer c = read_outer("{maybe: {}, items: [a], weights: {'x: y': 0.1}, text: ' null'}");
  std::string text = print(to_node(c));
  EXPECT_THAT(text, HasSubstr("maybe:\n  scale: 0.5\n  small: 3\n"));
  Outer back;
  read(parse(text, "printed"), back);
  EXPECT_EQ(print(to_node(back)), text);
  EXPECT_EQ(back.weights.at("x: y"), 0.1);
  EXPECT_EQ(back.text, " null");
}

TEST(Documentation, RowsSayWhatTheReaderDoes) {
  EXPECT_EQ(documentation_table<zoo::Inner>("a.b"),
            "| key | type | unit | default | range | on resume | meaning |\n"
            "|---|---|---|---|---|---|---|\n"
            "| `a.b.scale` | number |  | `0.5` | 0 <= x < 1 | changeable | A scale. |\n"
            "| `a.b.small` | integer | apples | `3` |  | ignored | A \\| bar. |\n");
  std::string table = documentation_table<Outer>();
  EXPECT_THAT(table, HasSubstr("| `start` | auto, log2_length or number |  | `auto` |"));
  EXPECT_THAT(table, HasSubstr("| `maybe` | section or null |  | `null` |"));
  EXPECT_THAT(table, HasSubstr("| `maybe.scale` |"));
  EXPECT_THAT(table, HasSubstr("| `items[].path` | text |  | required |"));
  EXPECT_THAT(table, Not(HasSubstr("| `inner` |")));
}

TEST(Documentation, TablesHaveTheirPlace) {
  EXPECT_EQ(with_table("a\n<!-- begin t -->\nold\n<!-- end t -->\nb\n", "t", "new\n"),
            "a\n<!-- begin t -->\nnew\n<!-- end t -->\nb\n");
  EXPECT_THAT(message_of([] { with_table("a\n", "t", "new\n"); }), HasSubstr("<!-- begin t -->"));
}

TEST(Resume, ChangeableIsReportedIgnoredIsNot) {
  Outer stored, now;
  now.inner = {0.25, 99};
  now.limit.reset();
  std::vector<Difference> changes = compare_on_resume(stored, now);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].key, "inner.scale");
  EXPECT_EQ(changes[0].stored, "0.5");
  EXPECT_EQ(changes[0].now, "0.25");
  EXPECT_EQ(changes[1].key, "limit");
  EXPECT_EQ(changes[1].now, "null");
  EXPECT_TRUE(compare_on_resume(now, now).empty());
}

TEST(Resume, DifferencesAreAll) {
  Outer before, after;
  after.inner = {0.25, 99};
  after.count = 8;
  std::string all;
  for (const Difference& d : differences(before, after)) all += fmt::format("{} {} {}, ", d.key, d.stored, d.now);
  EXPECT_EQ(all, "count 7 8, inner.scale 0.5 0.25, inner.small 3 99, ");
}

TEST(Resume, FixedIsRefusedWithBothValuesAtTheKeysPlace) {
  Node section = parse("x: 1\nzoo:\n  count: 8\n  limit: 3\n  color: red\n", "c.yaml")["zoo"];
  Outer stored, now;
  read(section, now);
  EXPECT_THAT(message_of([&] { compare_on_resume(stored, now, section); }),
              AllOf(StartsWith("c.yaml:3:10: zoo.count: "), HasSubstr("the checkpoint has 7, the config 8"),
                    HasSubstr("differing as well: color"), Not(HasSubstr("limit"))));
  stored = {};
  now = {};
  now.maybe = zoo::Inner{};
  EXPECT_THAT(message_of([&] { compare_on_resume(stored, now); }),
              AllOf(StartsWith("maybe: "), HasSubstr("has null, the config {scale: 0.5, small: 3}")));
  now = {};
  now.items = {{"a", 2}};
  EXPECT_THAT(message_of([&] { compare_on_resume(stored, now); }),
              HasSubstr("has [], the config [{path: a, weight: 2}]"));
}

}  // namespace
}  // namespace keel::config
