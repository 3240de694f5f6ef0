// One contract over all hooks that keep something for a resumed run: from its state, as text, a new one answers every
// step to come as the one would have that went on. A further hook with a name is a further kind.
#include <gmock/gmock.h>

#include <set>

#include "framework/base/log.h"
#include "framework/comm/communicator.h"
#include "framework/data/token_writer.h"
#include "framework/train/lost_hook.h"
#include "framework/train/stability_hook.h"
#include "tests/support/folder.h"
#include "tests/support/toy_model.h"

namespace keel::train {
namespace {

constexpr int64_t kSteps = 60;

// Losses fall, but for some that are not finite, some that leap, and a time of trouble at the end.
StepReport step(int64_t number) {
  StepReport report;
  report.step = report.updates = number;
  report.counted_tokens = 8;
  report.first_sample = (number - 1) * 4;
  report.end_sample = number * 4;
  report.loss = 4 - 0.01 * double(number) + 0.02 * double(number % 3);
  report.gradient_norm = 1 + 0.1 * double(number % 4);
  report.update_norm = 0.1 + 0.01 * double(number % 2);
  report.lr = 1e-3;
  report.layers = report.heads = 1;
  report.largest_logit = {number == 25 ? 400.0f : 5 + float(number % 3)};
  if (number % 20 == 7 || number > 55) report.loss = std::nan("");
  if (number == 30 || number == 31) report.loss = 9;
  if (number == 40) report.gradient_norm = 90;
  return report;
}

// A model with a held-out loss.
class Model : public keel::testing::ToyModel {
 public:
  void refresh() override {}
  void begin_step() override {}
  void forward_backward(Tensor, const nn::TokenBatch&, const nn::StepOptions&) override {}
  void evaluate(Tensor sums, const nn::TokenBatch& batch) override {
    const auto counted = double(batch.targets.elements());
    add(sums, {.loss = 3 * counted, .counted = counted, .finite = counted});
  }
};

// What hooks are made over.
struct Surroundings {
  Surroundings() : world(comm::make_self_communicator()), mesh(*world, 1) {
    log::set_speaker({.least = log::Level::warning});
    data::TokenWriter writer(folder / "tokens", 16);
    writer.append(std::vector<int32_t>(100, 3));
    writer.end_document();
    writer.finish();
    text.emplace(std::vector<data::Source>{{folder / "tokens"}}, data::DatasetOptions{.T = 8, .vocabulary = 16});
    evaluation.emplace(*text, BatchSizes{1, 8, 1}, false, 2);
    files.emplace(io,
                  RunFilesOptions{.directory = folder / "", .speaker = false, .tensorboard = false, .throughput = {}});
  }
  ~Surroundings() { log::set_speaker({}); }

  testing::TemporaryFolder folder;
  std::unique_ptr<comm::Communicator> world;
  parallel::Mesh mesh;
  Model model;
  std::optional<data::Dataset> text;
  std::optional<Evaluation> evaluation;
  io::IoThread io;
  std::optional<RunFilesHook> files;
  int64_t at = 0;  // the step
};

// In the order in which they see a step.
using Hooks = std::vector<std::shared_ptr<Hook>>;

Hooks stability(Surroundings&) {
  return {std::make_shared<StabilityHook>(
      config::StabilityConfig{.max_skips = 2,
                              .spike = {.window = 32, .min_history = 8, .sigmas = 6, .deviation_floor = 1e-3},
                              .lower_lr = {.factor = 0.5, .steps = 6, .times = 2}})};
}

// Evaluations every five steps, of which step 30's is left out. A loss that is not finite has made the run a lost one.
Hooks evaluation(Surroundings& s) {
  const EvaluationTimes times{.every = 5, .total_steps = kSteps, .interrupted = [&s] { return s.at == 30; }};
  auto evaluations = std::make_shared<EvaluationHook>(*s.evaluation, s.model, s.mesh, *s.files, times);
  return {evaluations, std::make_shared<LostHook>(
                           *evaluations, LostOptions{.largest_logit = 100, .bigram_loss = 9, .total_steps = kSteps})};
}

struct Kind {
  const char* name;
  Hooks (*make)(Surroundings&);
};
class HookContract : public ::testing::TestWithParam<Kind> {
 protected:
  // All that the loop asks a hook in one step.
  std::string answers(const Hooks& hooks, int64_t number) {
    surroundings.at = number;
    const StepReport report = step(number);
    std::string said;
    for (const auto& hook : hooks) {
      StepLimits limits;
      hook->limit(limits);
      said += fmt::format("{}: lr {}, limits {} {} {}", hook->name(), hook->lr_factor(number), limits.loss,
                          limits.gradient_norm, limits.largest_logit);
      const bool updated = report.finite() && report.loss <= limits.loss &&
                           report.gradient_norm <= limits.gradient_norm && report.largest() <= limits.largest_logit;
      const auto add = [&](const Verdict& verdict) {
        said += fmt::format("; {} {}", name_of(verdict.action), verdict.reason);
      };
      StepReport judged = report;
      judged.updated = updated;
      add(hook->judge(judged));
      if (updated) add(hook->judge_update(judged));
      add(hook->after_step(judged, {}, {.step = number}));
      said += "\n";
    }
    return said;
  }

  Surroundings surroundings;
};
const Kind kKinds[] = {{"Stability", stability}, {"EvaluationAndLost", evaluation}};
INSTANTIATE_TEST_SUITE_P(All, HookContract, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

TEST_P(HookContract, AResumedOneAnswersAsIfItHadGoneOn) {
  const Hooks whole = GetParam().make(surroundings);
  std::vector<std::string> expected;
  std::vector<std::vector<std::string>> states;
  for (int64_t number = 1; number <= kSteps; ++number) {
    expected.push_back(answers(whole, number));
    states.emplace_back();
    for (const auto& hook : whole) states.back().push_back(hook->state().dump());
  }
  EXPECT_GT(std::set<std::string>(expected.begin(), expected.end()).size(), 3u) << "a stream that asks little";
  for (int64_t cut = 1; cut < kSteps; ++cut) {
    const Hooks resumed = GetParam().make(surroundings);
    for (size_t i = 0; i < resumed.size(); ++i) {
      resumed[i]->restore(nlohmann::json::parse(states[size_t(cut - 1)][i]));
      EXPECT_EQ(resumed[i]->state().dump(), states[size_t(cut - 1)][i]) << resumed[i]->name() << " after step " << cut;
    }
    for (int64_t number = cut + 1; number <= kSteps; ++number)
      ASSERT_EQ(answers(resumed, number), expected[size_t(number - 1)]) << "step " << number << ", resumed at " << cut;
  }
}

// States lie in checkpoints under these.
TEST(HookContract, NamesAreTheirOwn) {
  Surroundings surroundings;
  std::set<std::string> names;
  for (const Kind& kind : kKinds)
    for (const auto& hook : kind.make(surroundings)) {
      EXPECT_FALSE(hook->name().empty());
      EXPECT_TRUE(names.insert(hook->name()).second) << hook->name();
      EXPECT_FALSE(hook->state().is_null()) << hook->name();
    }
}

}  // namespace
}  // namespace keel::train
