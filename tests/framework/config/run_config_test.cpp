#include "framework/config/run_config.h"

#include <cmath>
#include <locale>
#include <random>
#include <set>

#include "tests/framework/config/config_test.h"
#include "tests/support/documentation.h"

namespace keel::config {
namespace {

RunConfig quickstart(std::vector<std::string> overrides = {}) {
  return load_run_config(KEEL_SOURCE_DIR "/configs/quickstart.yaml", overrides);
}

TEST(RunConfig, DefaultsFillInWhatTheFileLeavesOut) {
  RunConfig c = run_config_of(minimal);
  EXPECT_EQ(c.name, "c");
  EXPECT_EQ(c.data.train.at(0).path, "tokens");
  EXPECT_EQ(c.optimizer.lr, 3e-4);
  EXPECT_EQ(c.optimizer.beta2, 0.95);
  EXPECT_EQ(c.model["kind"].text(), "decoder");
  EXPECT_EQ(c.model.path(), "model");
  EXPECT_FALSE(c.ablate.exists());
  EXPECT_EQ(std::get<ResumeFrom>(c.checkpoint.resume), ResumeFrom::automatic);
  EXPECT_EQ(std::get<std::string>(with_override("checkpoint.resume=runs/a/step.h5").checkpoint.resume),
            "runs/a/step.h5");
  EXPECT_EQ(with_override("train.stop_after=3h50m").train.stop_after->count(), 13800);
  EXPECT_EQ(with_override("checkpoint.mpi_hints={cb_nodes: 8}").checkpoint.mpi_hints.at("cb_nodes"), "8");
  EXPECT_EQ(quickstart().name, "quickstart");
}

// R54: one typo per section, before anything else happens; a key at the top level; a hyphen.
TEST(R54, TyposInEverySection) {
  const std::vector<std::array<std::string, 3>> typos = {{"sed", "1", "seed"},
                                                         {"data.sequence_lenght", "1", "sequence_length"},
                                                         {"batch.seqences", "1", "sequences"},
                                                         {"optimizer.learning_rat", "3e-4", "lr"},
                                                         {"schedule.warmup_step", "1", "warmup_steps"},
                                                         {"train.step", "1", "steps"},
                                                         {"eval.evry", "1", "every"},
                                                         {"parallel.tensr", "1", "tensor"},
                                                         {"checkpoint.kep", "1", "keep"},
                                                         {"stability.max_skip", "1", "max_skips"},
                                                         {"stability.spike.sigma", "1", "sigmas"},
                                                         {"stability.qk_clip.tua", "1", "tau"},
                                                         {"telemetry.tensor_bord", "true", "tensorboard"},
                                                         {"log.directry", "a", "directory"},
                                                         {"abalte", "{}", "ablate"},
                                                         {"optimizer.weight-decay", "0.1", "weight_decay"},
                                                         {"optimizer.clip-norm", "1", "clip_norm"},
                                                         {"LOG", "{}", "log"}};
  for (const auto& [path, value, meant] : typos) {
    // The same typo in a file, in place of a key that is right.
    std::string text = minimal;
    size_t line = 4, dot = path.find('.');
    if (dot == std::string::npos) text += path + ": " + value + "\n";
    Node root = parse(text, "c.yaml").with(path, parse("\n\n\n\n\n\n v: " + value, "c.yaml")["v"]);
    if (dot == std::string::npos) root = parse(text, "c.yaml");
    std::string message = message_of([&] { read_run_config(root, "c"); });
    std::string where =
        dot == std::string::npos ? fmt::format("c.yaml:{}:1: {}: ", line, path) : "c.yaml:7:5: " + path + ": ";
    EXPECT_THAT(message, AllOf(StartsWith(where), HasSubstr("unknown key"), HasSubstr("did you mean " + meant + "?")));
  }
}

TEST(R54, MisplacedKeysAreToldWhereTheyBelong) {
  EXPECT_EQ(message_of([] { run_config_of(minimal + "lr: 3e-4\n"); }),
            "c.yaml:4:1: lr: unknown key 'lr' at the top level (it belongs in optimizer.lr)");
  EXPECT_THAT(message_of([] { run_config_of(minimal + "optimizer:\n  z_loss: 1\n"); }),
              AllOf(StartsWith("c.yaml:5:3: optimizer.z_loss: "),
                    HasSubstr("in section optimizer (it belongs in train.z_loss)")));
  EXPECT_THAT(message_of([] { run_config_of(minimal + "optimizer.lr: 1\n"); }), HasSubstr("write lr inside optimizer"));
  EXPECT_THAT(message_of([] { run_config_of(minimal + "qk_clip: {tau: 1}\n"); }), HasSubstr("stability.qk_clip"));
  EXPECT_THAT(message_of([] { run_config_of(minimal + "every: 1\n"); }), HasSubstr("eval.every, checkpoint.every"));
  std::vector<KnownKey> model = {{"model.heads", {"heads"}}};
  EXPECT_THAT(message_of([&] { read_run_config(parse(minimal + "heads: 3\n", "c.yaml"), "c", model); }),
              HasSubstr("it belongs in model.heads"));
}

TEST(R54, MissingSections) {
  EXPECT_THAT(message_of([] { run_config_of("model: {}\ntrain: {steps: 1}\n"); }),
              StartsWith("c.yaml:1:1: data.train: missing"));
  EXPECT_THAT(message_of([] { run_config_of("data: {train: a}\ntrain: {steps: 1}\n"); }),
              StartsWith("c.yaml:1:1: model: missing"));
  EXPECT_THAT(message_of([] { run_config_of("data: {train: a}\nmodel: 3\n"); }),
              HasSubstr("model: needs a section, is '3'"));
}

// R55, in the locale at hand.
void expect_typed_numbers() {
  for (const char* lr : {"1e-4", "1.0e-4", "1E-04", "0.0001", ".0001", "'1e-4'", "\"1e-4\"", "+1e-4"})
    EXPECT_EQ(with_override(fmt::format("optimizer.lr={}", lr)).optimizer.lr, 1e-4) << lr;
  for (const char* lr :
       {"nan", ".nan", "inf", ".inf", "-inf", "1e-4x", "1e-999", "1e999", "0,0001", "1e", "\"\"", "abc", "0x1p3"})
    EXPECT_THAT(override_error(fmt::format("optimizer.lr={}", lr)), HasSubstr("optimizer.lr: needs a number, is "))
        << lr;
  EXPECT_THAT(override_error("optimizer.lr=-1e-4"), HasSubstr("optimizer.lr: must be > 0, is -1e-4"));
  EXPECT_THAT(override_error("optimizer.lr=010"), HasSubstr("write 10, without zeros in front"));
  EXPECT_THAT(override_error("optimizer.lr=0,0001"), HasSubstr("write 0.0001, with a decimal point"));
  const std::pair<const char*, const char*> counts[] = {
      {"1.5", "'1.5'"},          {"1e3x", "'1e3x'"},
      {"10k", "(write 10000)"},  {"\"\"", "''"},
      {"1e3", "(write 1000)"},   {"010", "(write 10, without zeros in front)"},
      {"1_000", "(write 1000)"}, {"1,000", "(write 1000)"},
      {"0x10", "'0x10'"},        {"99999999999999999999", "too large for 64 bits"},
      {"1.0", "(write 1)"},      {"2.5M", "(write 2500000)"}};
  for (auto [steps, hint] : counts)
    EXPECT_THAT(override_error(fmt::format("train.steps={}", steps)),
                AllOf(HasSubstr("train.steps: needs an integer or null, is "), HasSubstr(hint)))
        << steps;
  EXPECT_EQ(with_override("train.steps=3000000000").train.steps, 3000000000);
  EXPECT_THAT(override_error("train.steps=0"), HasSubstr("train.steps: must be >= 1, is 0"));
  EXPECT_THAT(override_error("train.steps=-5"), HasSubstr("must be >= 1, is -5"));
  EXPECT_THAT(print(to_node(with_override("train.steps=3000000000"))),
              AllOf(HasSubstr("steps: 3000000000\n"), HasSubstr("lr: 0.0003\n"), HasSubstr("eps: 1.0e-08\n")));
}

TEST(R55, NumbersAreTyped) {
  expect_typed_numbers();
}

struct CommaCountry : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(R55, TheLocaleChangesNothing) {
  std::locale before = std::locale::global(std::locale(std::locale(), new CommaCountry));
  std::string c_before = std::setlocale(LC_ALL, nullptr);
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"})
    if (std::setlocale(LC_ALL, name) != nullptr) break;
  std::string documented = documentation_table<RunConfig>();
  expect_typed_numbers();
  EXPECT_THAT(parse_error(std::string(1500, '\n') + "a: {b: 1, b: 2}\n"), StartsWith("c.yaml:1501:11: a.b: "));
  std::setlocale(LC_ALL, c_before.c_str());
  std::locale::global(before);
  EXPECT_EQ(documented, documentation_table<RunConfig>());
}

// R56
TEST(R56, DuplicateKeysNameBothLines) {
  EXPECT_THAT(message_of([] { run_config_of(minimal + "optimizer:\n  lr: 1\n  lr: 2\n"); }),
              AllOf(StartsWith("c.yaml:6:3: optimizer.lr: duplicate"), HasSubstr("line 5"), HasSubstr("line 6")));
  EXPECT_THAT(message_of([] { run_config_of(minimal + "model: {}\n"); }),
              AllOf(StartsWith("c.yaml:4:1: model: duplicate"), HasSubstr("line 1"), HasSubstr("line 4")));
}

TEST(CrossChecks, PointAtTheKey) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"model: {}\ndata: {train: a}\n", "c.yaml:1:1: train.steps: missing: give train.steps or train.tokens"},
      {"model: {}\ndata: {train: a}\ntrain: {z_loss: 0}\n", "c.yaml:3:8: train.steps: missing"},
      {"model: {}\ndata: {train: a}\ntrain:\n  steps: 1\n  tokens: 9\n",
       "c.yaml:5:11: train.tokens: train.steps is 1, train.tokens 9"},
      {minimal + "schedule: {kind: wsd}\n", "c.yaml:4:11: schedule.decay_steps: missing: kind wsd"},
      {minimal + "schedule: {decay_steps: 5}\n", "c.yaml:4:25: schedule.decay_steps: only kind wsd"},
      {minimal + "schedule: {warmup_steps: 101}\n",
       "c.yaml:4:26: schedule.warmup_steps: warmup_steps 101 and decay_steps 0"},
      {minimal + "schedule: {kind: wsd, warmup_steps: 60, decay_steps: 41}\n", "do not fit into a run of 100 steps"},
      {minimal + "stability: {spike: {window: 10}}\n",
       "c.yaml:4:20: stability.spike.min_history: must be at most window, 10"},
      {minimal + "name: a/b\n", "c.yaml:4:7: name: must be the name of a folder"},
      {minimal + "name: ''\n", "c.yaml:4:7: name: must be the name of a folder"},
      {"model: {}\ndata: {train: []}\ntrain: {steps: 1}\n", "c.yaml:2:15: data.train: needs at least one source"},
      {"model: {}\ndata: {train: [{path: a, weight: 2}, b]}\ntrain: {steps: 1}\n",
       "c.yaml:2:15: data.train: some sources have a weight, others none (b)"},
      {minimal + "batch: {sequences: 9000000000000000000}\n", "2^48"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_THAT(message_of([&] { run_config_of(text); }), HasSubstr(expected)) << text;
  EXPECT_NO_THROW(run_config_of(minimal + "schedule: {kind: wsd, warmup_steps: 60, decay_steps: 40}\n"));
}

TEST(CrossChecks, TokensRoundUpToSteps) {
  std::string text = "model: {}\ndata: {train: a, sequence_length: 100}\nbatch: {sequences: 3}\ntrain: {tokens: ";
  EXPECT_EQ(run_config_of(text + "3000}\n").total_steps(), 10);
  EXPECT_EQ(run_config_of(text + "3001}\n").total_steps(), 11);
  EXPECT_EQ(run_config_of(text + "1}\n").total_steps(), 1);
  EXPECT_EQ(run_config_of(text + "9223372036854775807}\n").total_steps(), 30744573456182587);
}

std::string layout_error(std::vector<std::string> overrides, int64_t world) {
  RunConfig c = quickstart(std::move(overrides));
  return message_of([&] { check_layout(c, world); });
}

// R58, as far as it needs no model.
TEST(R58, SizesThatDoNotDivide) {
  EXPECT_EQ(layout_error({"parallel.tensor=4"}, 6),
            "command line: parallel.tensor=4: parallel.tensor: 6 ranks do not divide into tensor groups of 4");
  EXPECT_EQ(layout_error({"batch.sequences=10", "batch.micro_sequences=4"}, 2),
            "command line: batch.sequences=10: batch.sequences: 10 sequences do not divide into 2 data ranks x "
            "micro_sequences 4");
  EXPECT_THAT(layout_error({"batch.sequences=12", "batch.micro_sequences=4"}, 2), HasSubstr("12 sequences"));
  EXPECT_THAT(layout_error({"batch.sequences=10"}, 4), HasSubstr("10 sequences do not divide into 4 data ranks"));
  EXPECT_THAT(layout_error({"parallel.data=3"}, 4), HasSubstr("3 x tensor 1 makes 3 ranks, 4 were started"));
  EXPECT_THAT(layout_error({"parallel.ranks=8"}, 1), HasSubstr("parallel.ranks: 8 ranks are expected, 1 were started"));
  EXPECT_THAT(layout_error({"parallel.tensor=2"}, 1), HasSubstr("1 ranks do not divide into tensor groups of 2"));
  for (const char* key :
       {"parallel.tensor", "parallel.data", "parallel.ranks", "batch.sequences", "batch.micro_sequences",
        "data.sequence_length", "checkpoint.parts", "checkpoint.keep", "train.steps"})
    EXPECT_THAT(message_of([&] { quickstart({fmt::format("{}=0", key)}); }), HasSubstr("is 0")) << key;
}

TEST(R58, StructsMadeInCodeAreCheckedToo) {
  RunConfig c = quickstart();
  c.source = {};
  c.parallel.tensor = 0;
  EXPECT_EQ(message_of([&] { check_layout(c, 4); }), "parallel.tensor: must be >= 1, is 0");
  c.parallel.tensor = 1;
  c.batch.micro_sequences = 0;
  EXPECT_EQ(message_of([&] { check_layout(c, 4); }), "batch.micro_sequences: must be >= 1, is 0");
}

TEST(R58, LayoutsThatFit) {
  Layout layout = check_layout(quickstart({"parallel.tensor=2", "batch.sequences=24", "batch.micro_sequences=4"}), 6);
  EXPECT_EQ(layout.tensor, 2);
  EXPECT_EQ(layout.data, 3);
  EXPECT_EQ(layout.sequences_per_data_rank, 8);
  EXPECT_EQ(check_layout(quickstart({"parallel.data=4", "parallel.ranks=4", "batch.micro_sequences=auto"}), 4).data, 4);
}

TEST(Resume, LrMayChangeDataMayNot) {
  RunConfig stored = quickstart({"optimizer.lr=1e-3"}),
            now = quickstart({"optimizer.lr=5e-4", "name=other", "log.every=3", "model.preset=gemma3"});
  std::vector<Difference> changes = compare_on_resume(stored, now, now.source);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].key + " " + changes[0].stored + " " + changes[0].now, "optimizer.lr 0.001 0.0005");
  now = quickstart({"data.sequence_length=256"});
  EXPECT_EQ(
      message_of([&] { compare_on_resume(stored, now, now.source); }),
      "command line: data.sequence_length=256: data.sequence_length: fixed when a run is resumed: the checkpoint has "
      "128, the config 256 (set it back, or start a new run)");
  for (const char* moved :
       {"data.train=other", "data.valid=null", "data.valid=[{path: x, weight: 2}]", "train.stop_after=1h"})
    EXPECT_NO_THROW(compare_on_resume(stored, quickstart({moved}))) << moved;
  for (const char* fixed : {"seed=2", "batch.sequences=32", "data.train=[a, b]", "data.document_mask=true"})
    EXPECT_THAT(message_of([&] { compare_on_resume(stored, quickstart({fixed})); }), HasSubstr("fixed")) << fixed;
}

// One of a single source and those of held-out ones say nothing, and are written by no older run differently.
TEST(Resume, ComparesWeightsThatMatter) {
  const RunConfig stored = quickstart({"data.train=[{path: a, weight: 1}, {path: b, weight: 1}]"});
  EXPECT_NO_THROW(compare_on_resume(stored, quickstart({"data.train=[{path: c, weight: 1}, {path: b, weight: 1}]"})));
  for (const char* other : {"data.train=[{path: a, weight: 1}, {path: b, weight: 2}]", "data.train=[a, b]"})
    EXPECT_THAT(message_of([&] { compare_on_resume(stored, quickstart({other})); }), HasSubstr("weight: fixed"))
        << other;
  const RunConfig single = quickstart({"data.train=[{path: a, weight: 1}]", "data.valid=[{path: v, weight: 1}]"});
  EXPECT_TRUE(compare_on_resume(single, quickstart({"data.train=a", "data.valid=v"})).empty());
}

// A random config: every key that has a description takes values from its range, by chance.
class RandomConfig {
 public:
  explicit RandomConfig(unsigned seed) : random_(seed) {}
  RunConfig operator()() {
    RunConfig c;
    c.name = text();
    c.seed = integer();
    c.precision = Precision(random_() % 2);
    if (random_() % 2) c.device = DeviceKind(random_() % 2);
    c.model = parse("{kind: decoder, 'a: b': [1, {c: null}]}", "random");
    for (unsigned n = 1 + random_() % 3; n > 0; --n) c.data.train.push_back({text(), real()});
    if (random_() % 2) c.data.valid = {{text(), real()}};
    c.data.document_mask = random_() % 2;
    if (random_() % 2) c.data.tokenizer = text();
    if (random_() % 2) c.batch.micro_sequences = integer();
    c.optimizer.lr = real();
    c.optimizer.eps = real();
    c.optimizer.decay = DecayKind(random_() % 2);
    c.optimizer.clip_norm = random_() % 2 ? std::optional(real()) : std::nullopt;
    c.schedule.kind = c.schedule.kind;
    (random_() % 2 ? c.train.steps : c.train.tokens) = integer();
    if (random_() % 2) c.train.stop_after = std::chrono::seconds(1 + random_() % 1000000);
    c.train.z_loss = real();
    c.eval.every = random_() % 2 ? std::optional(integer()) : std::nullopt;
    c.parallel.tensor = integer();
    if (random_() % 2) c.parallel.data = integer();
    if (random_() % 2) c.checkpoint.resume = "/" + text();
    for (unsigned n = random_() % 3; n > 0; --n) c.checkpoint.mpi_hints[text()] = text();
    c.stability.spike.sigmas = real();
    if (random_() % 2) c.stability.qk_clip = QkClipConfig{real()};
    c.log.directory = text();
    return c;
  }

 private:
  int64_t integer() { return 1 + int64_t(random_() >> (random_() % 32)); }
  double real() { return std::ldexp(1 + double(random_()) / 7e9, int(random_() % 200) - 100); }
  std::string text() {
    const char* pieces[] = {"a",  "B", "0",    ":", " ", "#", "-", "'", "\"", "\\",
                            "\n", "é", "null", "~", "{", "]", ",", "&", "\t", "\x1f"};
    std::string out = "x";
    for (unsigned n = random_() % 6; n > 0; --n)
      out.insert(random_() % 2 ? 0 : out.size(), pieces[random_() % std::size(pieces)]);
    return out;
  }
  std::mt19937 random_;
};

TEST(RoundTrip, PrintedConfigsReadBackEqual) {
  RandomConfig random(11);
  for (int round = 0; round < 200; ++round) {
    RunConfig c = random();
    std::string text = print(to_node(c));
    RunConfig back;
    ASSERT_NO_THROW(read(parse(text, "printed"), back)) << text;
    ASSERT_EQ(print(to_node(back)), text);
    ASSERT_EQ(back.optimizer.lr, c.optimizer.lr);
    ASSERT_EQ(back.name, c.name);
    ASSERT_EQ(back.log.directory, c.log.directory);
    ASSERT_EQ(back.checkpoint.mpi_hints, c.checkpoint.mpi_hints);
    ASSERT_EQ(back.data.train.back().weight, c.data.train.back().weight);
    ASSERT_EQ(back.stability.qk_clip.has_value(), c.stability.qk_clip.has_value());
    ASSERT_EQ(back.train.stop_after, c.train.stop_after);
  }
}

void expect_documented_fields(const Fields& fields, const std::string& path, std::set<std::string>& known) {
  for (const Fields::Entry& entry : fields.entries()) {
    EXPECT_FALSE(entry.field.doc.empty()) << path << entry.name;
    EXPECT_TRUE(entry.field.doc.ends_with('.')) << path << entry.name;
    known.insert(path + entry.name);
    expect_documented_fields(entry.value->inside_documented(), path + entry.name + ".", known);
  }
}

TEST(Documentation, EveryKeyIsDescribedAndTheFixedNamesExist) {
  RunConfig defaults;
  std::set<std::string> known;
  expect_documented_fields(fields_of(defaults), "", known);
  for (const char* key :
       {"train.z_loss", "train.label_smoothing", "train.stop_after", "eval.every", "stability.qk_clip.tau"})
    EXPECT_TRUE(known.contains(key)) << key;
}

TEST(Documentation, ConfigsReadmeIsUpToDate) {
  testing::expect_documented(KEEL_SOURCE_DIR "/configs/README.md", "run keys", documentation_table<RunConfig>());
}

}  // namespace
}  // namespace keel::config
