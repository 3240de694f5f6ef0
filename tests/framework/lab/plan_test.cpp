// The section `ablate`, and the cells that follow from it.
#include "framework/lab/plan.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/support/documentation.h"

namespace keel::lab {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kBase = "optimizer: {lr: 1, weight_decay: 0.1}\nmodel: {kind: decoder}\n";
const std::string kArms = "  arms: {plain: {}, wide: {model.hidden: 64, optimizer.eps: 1e-9}}\n";

config::Node tree(const std::string& ablate) {
  return config::parse(kBase + "ablate:\n" + ablate, "a.yaml");
}

Plan plan_of(const std::string& ablate) {
  return make_plan(tree(ablate), "study", "runs/study");
}

std::string refusal(const std::string& ablate) {
  try {
    plan_of(ablate);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.what();
  }
  return "";
}

TEST(Plan, EveryArmAtEveryPointWithEverySeed) {
  const Plan plan = plan_of(kArms + "  axes: {optimizer.lr: [1e-3, 0.01], batch.sequences: [4, 8]}\n  seeds: [7, 3]\n");
  ASSERT_EQ(plan.cells.size(), 16u);
  std::set<std::string> names;
  for (const Cell& cell : plan.cells) names.insert(cell.name);
  EXPECT_EQ(names.size(), 16u);
  const Cell& second = plan.cells[1];
  EXPECT_EQ(second.name, "wide-lr1e-3-sequences4-seed7");
  EXPECT_EQ(second.root["model"]["hidden"].text(), "64");
  EXPECT_EQ(second.root["optimizer"]["eps"].text(), "1e-9");
  EXPECT_EQ(second.root["optimizer"]["lr"].text(), "1e-3");
  EXPECT_EQ(second.root["optimizer"]["weight_decay"].text(), "0.1") << "keys that nothing names stay";
  EXPECT_EQ(second.root["batch"]["sequences"].text(), "4");
  EXPECT_EQ(second.root["seed"].text(), "7");
  EXPECT_EQ(second.root["name"].text(), second.name);
  EXPECT_EQ(second.root["log"]["directory"].text(), "runs/study/cells");
  EXPECT_FALSE(plan.cells[0].root["model"]["hidden"].exists());
  EXPECT_EQ(plan.cells[8].seed, 3) << "a seed is finished before the next begins";
}

TEST(Plan, TheBaselineComesFirst) {
  const Plan plan = plan_of(kArms + "  baseline: wide\n");
  ASSERT_EQ(plan.arms.size(), 2u);
  EXPECT_EQ(plan.arms[0].name, "wide");
  EXPECT_EQ(plan_of(kArms).baseline, "plain");
  EXPECT_EQ(plan_of(kArms).cells.size(), 2u) << "seed 1, no axes";
}

TEST(Plan, ReadsBackFromJson) {
  Plan plan = plan_of(kArms + "  axes: {optimizer.lr: [1e-3]}\n  stop: {lost: true}\n");
  plan.arms[1].differences = {{"model.hidden", "32", "64"}};
  const Plan back = plan_from_json(to_json(plan));
  EXPECT_EQ(to_json(back), to_json(plan));
  EXPECT_EQ(back.arm("wide").differences.at(0).arm, "64");
  EXPECT_EQ(back.axis("optimizer.lr"), 0);
  EXPECT_EQ(back.axis("seed"), -1);
  EXPECT_TRUE(back.stop_lost);
}

TEST(Plan, WrongSectionsAreRefusedWhereTheyAre) {
  EXPECT_THAT(refusal("  axes: {optimizer.lr: [1]}\n"), HasSubstr("ablate.arms"));
  EXPECT_THAT(refusal("  arms: {}\n"), HasSubstr("needs at least one arm"));
  EXPECT_THAT(refusal(kArms + "  baseline: wode\n"), HasSubstr("did you mean wide?"));
  EXPECT_THAT(refusal(kArms + "  axes: {optimizer.lr: 1e-3}\n"), HasSubstr("optimizer.lr: [a, b]"));
  EXPECT_THAT(refusal(kArms + "  axes: {optimizer.lr: [1e-3, 1e-3]}\n"), HasSubstr("on this axis twice"));
  for (const char* same : {"[1e-3, 0.001]", "[1, 1.0]", "[.5, 5e-1]"})
    EXPECT_THAT(refusal(kArms + "  axes: {optimizer.lr: " + same + "}\n"), HasSubstr("on this axis twice")) << same;
  EXPECT_THAT(refusal(kArms + "  axes: {model.hidden: [64]}\n"), HasSubstr("model.hidden is an axis as well"));
  // However arm and axis are written: the same key, a section of the axis, a key within the axis.
  for (const auto& [arm, axis] : {std::pair("{model: {hidden: 64}}", "model.hidden: [64]"),
                                  {"{model: {attention: {heads: 2}}}", "model.attention: [null]"},
                                  {"{model.attention: null}", "model.attention.heads: [2]"}})
    EXPECT_THAT(refusal(fmt::format("  arms: {{plain: {{}}, a: {}}}\n  axes: {{{}}}\n", arm, axis)),
                HasSubstr("is an axis as well"))
        << arm;
  EXPECT_EQ(refusal("  arms: {plain: {}, a: {model: {hid: 2}}}\n  axes: {model.hidden: [2]}\n"), "") << "another key";
  EXPECT_THAT(refusal("  arms: {a: {log: {directory: x}}}\n"), HasSubstr("the ablation itself sets"));
  EXPECT_THAT(refusal("  arms: {a: {optimizer: {lr: 1}, optimizer.lr: 2}}\n"), HasSubstr("optimizer.lr: set twice"));
  EXPECT_THAT(refusal("  arms: {a: {seed: 3}}\n"), HasSubstr("list them in ablate.seeds"));
  EXPECT_THAT(refusal("  arms: {a: {log.directory: x}}\n"), HasSubstr("the ablation itself sets"));
  EXPECT_THAT(refusal("  arms: {a/b: {}}\n"), StartsWith("a.yaml:4:"));
  EXPECT_THAT(refusal(kArms + "  seeds: [1, 1]\n"), HasSubstr("a seed twice"));
  EXPECT_THAT(refusal(kArms + "  arm: {}\n"), HasSubstr("did you mean arms?"));
}

TEST(Plan, CellsByNumberRangeAndName) {
  const Plan plan = plan_of(kArms + "  axes: {optimizer.lr: [1e-3, 1e-2]}\n");
  auto chosen = [&](std::vector<std::string> patterns) { return chosen_cells(plan, patterns); };
  EXPECT_THAT(chosen({}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(chosen({"2"}), ElementsAre(1));
  EXPECT_THAT(chosen({"3-9", "1"}), ElementsAre(0, 2, 3));
  EXPECT_THAT(chosen({"wide-*"}), ElementsAre(1, 3));
  EXPECT_THAT(chosen({"*-lr1e-2-*", "1"}), ElementsAre(0, 2, 3));
  EXPECT_THROW(chosen({"9"}), Error);
  EXPECT_THROW(chosen({"1", "narrow*"}), Error);
}

TEST(Plan, DifferencesNameEveryKey) {
  const auto a = config::parse("{name: x, model: {a: 1, b: {c: [1, 2]}}, seed: 1, log: {every: 1}}", "a");
  const auto b = config::parse("{name: y, model: {a: 1, b: {c: [1, 3]}, d: 4}, seed: 2, log: {every: 2}}", "b");
  const std::vector<KeyDifference> found = differing_keys(a, b);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].key, "model.b.c");
  EXPECT_EQ(found[0].baseline, "[1, 2]");
  EXPECT_EQ(found[0].arm, "[1, 3]");
  EXPECT_EQ(found[1].key, "model.d");
  EXPECT_EQ(found[1].baseline, "-");
}

TEST(Plan, DifferencesOfSeveralPointsAreOneList) {
  std::vector<KeyDifference> known = {{"a", "1", "2"}};
  add_differences(known, {{"a", "1", "2"}, {"b", "3", "4"}});
  add_differences(known, {{"a", "10", "2"}});
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[0].baseline, "1 or 10");
  EXPECT_EQ(known[0].arm, "2");
  EXPECT_EQ(known[1].key, "b");
}

TEST(Plan, ASectionWhereTheOtherHasNoneIsOneDifference) {
  const auto a = config::parse("{model: {init: {std: 1, outliers: null}}}", "a");
  const auto b = config::parse("{model: {init: {std: 1, outliers: {features: 4, factor: 100}}}}", "b");
  for (bool back : {false, true}) {
    const std::vector<KeyDifference> found = back ? differing_keys(b, a) : differing_keys(a, b);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].key, "model.init.outliers");
    EXPECT_EQ(back ? found[0].arm : found[0].baseline, "null");
    EXPECT_THAT(back ? found[0].baseline : found[0].arm, HasSubstr("factor: 100"));
  }
}

TEST(Plan, EveryKeyIsDocumented) {
  testing::expect_documented(KEEL_SOURCE_DIR "/configs/README.md", "ablate keys",
                             config::documentation_table<AblateConfig>("ablate"));
}

}  // namespace
}  // namespace keel::lab
