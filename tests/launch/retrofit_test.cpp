// From checkpoint to checkpoint: QK-Norm put into a model trained without it, a scale folded into gains, and weights to
// begin with.
#include <gmock/gmock.h>

#include "framework/io/files.h"
#include "tests/launch/run_fixture.h"
#include "tests/support/folder.h"

namespace keel::testing {
namespace {

using ::testing::HasSubstr;

class Retrofit : public RunFixture {
 protected:
  double loss_of(const std::string& checkpoint) {
    const Ended ended = keel("eval " + checkpoint + " --data corpus-valid --sequences 16");
    EXPECT_EQ(ended.code, 0) << ended.output;
    const size_t at = ended.output.find("loss ");
    return at == std::string::npos ? std::nan("") : std::strtod(ended.output.c_str() + at + 5, nullptr);
  }
  void succeed(const std::string& arguments) {
    const Ended ended = keel(arguments);
    ASSERT_EQ(ended.code, 0) << ended.output;
  }
};

constexpr const char* kBaseline = "train run.yaml name=base model.attention.qk_norm.kind=none optimizer.lr=1e-2 ";

// Training goes on from there, with its moments, at any layout. (How close calibration comes: calibration_test.cpp.)
TEST_F(Retrofit, PutsQkNormIn) {
  succeed(std::string(kBaseline) + "train.steps=60");
  const std::string base = checkpoint("base", 60);
  succeed("convert --retrofit qk_norm=rms --data corpus-valid " + base + " fitted.h5");
  const double fitted = loss_of("fitted.h5");
  EXPECT_NEAR(fitted, loss_of(base), 0.15 * loss_of(base));
  // Of long texts some rows are looked at.
  const Ended many = keel("convert --retrofit qk_norm=rms --data corpus --sequences 1000 " + base + " many.h5");
  EXPECT_THAT(many.output, ::testing::ContainsRegex("calibrated on [34][0-9][0-9][0-9] of 32000 rows of each head"));
  EXPECT_NEAR(loss_of("many.h5"), fitted, 0.02 * fitted);
  const std::string go_on = "train run.yaml optimizer.lr=1e-2 checkpoint.resume=fitted.h5 train.steps=70 ";
  succeed(go_on + "name=one");
  const Ended two = keel(go_on + "name=two parallel.tensor=2", 2);
  ASSERT_EQ(two.code, 0) << two.output;
  const std::vector<double> one = metric("one", "loss"), other = metric("two", "loss");
  ASSERT_EQ(one.size(), 10u);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], other[i], 1e-4);
  EXPECT_LT(one.back(), 1.1 * metric("base", "loss").back());
  EXPECT_EQ(run_command(fmt::format("cd {} && h5diff -q {} fitted.h5 /moment2", directory_.string(), base)).code, 1)
      << "the gains have moments of their own";
  EXPECT_EQ(run_command(fmt::format("cd {} && h5diff -q {} fitted.h5 /moment2/blocks.0.attention.q.weight",
                                    directory_.string(), base))
                .code,
            0);

  // What the detectors have seen is the other model's.
  io::IoThread io;
  const auto hooks = [&](const std::string& path) { return checkpoints::read_contents(io, path).state.hooks; };
  EXPECT_THAT(hooks(base), HasSubstr("gradient_norm"));
  EXPECT_THAT(hooks((directory_ / "fitted.h5").string()),
              ::testing::AllOf(HasSubstr("evaluation"), ::testing::Not(HasSubstr("stability"))));

  // Nothing is overwritten.
  const std::string bytes = read_bytes((directory_ / "fitted.h5").string());
  for (const char* arguments : {"--retrofit qk_norm=rms --data corpus-valid ", "--fold "}) {
    const Ended again = keel(std::string("convert ") + arguments + base + " fitted.h5");
    EXPECT_EQ(again.code, 2) << again.output;
    EXPECT_THAT(again.output, HasSubstr("fitted.h5 exists: give another name, or remove it first"));
  }
  EXPECT_EQ(read_bytes((directory_ / "fitted.h5").string()), bytes);

  EXPECT_THAT(keel("convert --retrofit qk_norm=rms fitted.h5 again.h5").output, HasSubstr("has QK-Norm already"));
  EXPECT_THAT(keel("convert --retrofit qk_norm=none fitted.h5 out.h5").output, HasSubstr("cannot be taken out"));
  EXPECT_THAT(keel("convert --retrofit qk_norm=l2 " + base + " out.h5").output, HasSubstr("qk_norm=rms is known"));
}

// At a learning rate at which logits grow without end, from the first checkpoint with one above 50: left alone, the
// largest doubles within 50 steps; with QK-Norm put in it never does, and the loss is back within 1% of what it was,
// and of what the model left alone has come to by then.
TEST_F(Retrofit, HoldsLogitsThatWouldGrow) {
  constexpr double kGrown = 50;
  constexpr size_t kEvery = 10, kSteps = 50;
  const std::string common = "train run.yaml optimizer.lr=8e-2 schedule.kind=constant eval.every=null ";
  const std::string without = "model.attention.qk_norm.kind=none ";
  succeed(common + without + fmt::format("name=base train.steps=60 checkpoint.keep=99 checkpoint.every={}", kEvery));
  const std::vector<double> logits = metric("base", "largest_logit");
  ASSERT_EQ(logits.size(), 60u);
  size_t at = kEvery;
  while (at < 60 && logits[at - 1] < kGrown) at += kEvery;
  ASSERT_LT(at, 60u) << "logits have not grown";
  const std::string base = checkpoint("base", int(at));
  succeed("convert --retrofit qk_norm=rms --data corpus-valid " + base + " fitted.h5");
  const std::string go_on = common + fmt::format("train.steps={} checkpoint.resume=", at + kSteps);
  succeed(go_on + base + " name=alone " + without);
  succeed(go_on + "fitted.h5 name=held");
  const auto largest = [&](const std::string& run) { return std::ranges::max(metric(run, "largest_logit")); };
  EXPECT_GT(largest("alone"), 2 * logits[at - 1]);
  EXPECT_LT(largest("held"), 2 * logits[at - 1]);
  const double before = loss_of(base), alone = loss_of(checkpoint("alone", int(at + kSteps))),
               held = loss_of(checkpoint("held", int(at + kSteps)));
  EXPECT_LT(held, 1.01 * before);
  EXPECT_LT(held, 1.01 * alone);
  fmt::print("step {}, largest logit {:.1f}: then {:.1f} alone, {:.1f} held; losses {:.3f}, {:.3f}, {:.3f}\n", at,
             logits[at - 1], largest("alone"), largest("held"), before, alone, held);
}

// Ranks see parts of the text, or have parts of the heads: the same gains.
TEST_F(Retrofit, OnSeveralRanks) {
  succeed(std::string(kBaseline) + "train.steps=40 model.attention.kv_heads=2");
  const std::string convert =
      "convert --retrofit qk_norm=rms --data corpus-valid --sequences 21 " + checkpoint("base", 40) + " ";
  succeed(convert + "one.h5");
  for (const auto& [name, ranks, tensor] : {std::tuple("data", 2, 1), {"tensor", 4, 4}, {"both", 4, 2}}) {
    const Ended ended = keel(fmt::format("{}{}.h5 --tensor {}", convert, name, tensor), ranks);
    ASSERT_EQ(ended.code, 0) << ended.output;
    io::IoThread io;
    const auto weights = [&](const std::string& file, const std::string& parameter) {
      return checkpoints::read_weights(io, (directory_ / (file + ".h5")).string(), {parameter}).at(parameter);
    };
    for (const char* parameter : {"q_norm", "k_norm", "logit_scale"}) {
      const std::string path = fmt::format("blocks.1.attention.{}.weight", parameter);
      EXPECT_THAT(weights(name, path), ::testing::Pointwise(::testing::FloatNear(1e-4f), weights("one", path)))
          << name << ' ' << parameter;
    }
    EXPECT_EQ(run_command(fmt::format("cd {} && h5diff -q {}.h5 one.h5 /moment2/blocks.0.attention.q.weight",
                                      directory_.string(), name))
                  .code,
              0);
  }
  const Ended odd = keel(convert + "odd.h5 --tensor 3", 4);
  EXPECT_EQ(odd.code, 2);
  EXPECT_THAT(odd.output, HasSubstr("4 ranks do not divide into tensor groups of 3"));
}

// The first update leaves weights whose products overflow.
TEST_F(Retrofit, RefusesAModelThatHasDiverged) {
  succeed(
      "train run.yaml name=base model.attention.qk_norm.kind=none train.steps=1 data.valid=null optimizer.lr=2e19 "
      "schedule.warmup_steps=0 optimizer.clip_norm=null");
  const Ended ended = keel("convert --retrofit qk_norm=rms --data corpus-valid " + checkpoint("base", 1) + " out.h5");
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.output,
              ::testing::ContainsRegex("its held-out loss is -?nan: its weights have diverged; take an earlier"));
}

TEST_F(Retrofit, LeavesGainsAsTheyBeginWhereAsked) {
  succeed(std::string(kBaseline) + "train.steps=10");
  const Ended ended =
      keel("convert --retrofit qk_norm=rms --uncalibrated --data corpus-valid " + checkpoint("base", 10) + " raw.h5");
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, ::testing::Not(HasSubstr("calibrated on")));
  io::IoThread io;
  const std::string path = (directory_ / "raw.h5").string();
  for (const char* name : {"q_norm", "k_norm", "logit_scale"}) {
    const std::string parameter = fmt::format("blocks.1.attention.{}.weight", name);
    EXPECT_THAT(checkpoints::read_weights(io, path, {parameter}).at(parameter), ::testing::Each(1.f)) << name;
  }
  EXPECT_TRUE(std::isfinite(loss_of("raw.h5")));
}

// A rotation that multiplies, and a scale that was learned, do so before and after.
TEST_F(Retrofit, KnowsAmplitudesAndLearnedScales) {
  succeed(
      std::string(kBaseline) +
      "model.rope.scaling.kind=yarn model.rope.scaling.attention_factor=3 model.attention.logit_scale.kind=per_layer "
      "train.steps=40");
  const std::string base = checkpoint("base", 40);
  succeed("convert --retrofit qk_norm=rms --data corpus-valid " + base + " fitted.h5");
  EXPECT_NEAR(loss_of("fitted.h5"), loss_of(base), 0.1 * loss_of(base));
}

// The same model in fewer words: the loss is the same, whatever form the gains and the scale had.
TEST_F(Retrofit, FoldsScalesIntoGains) {
  const char* forms[] = {"model.attention.qk_norm.weight=per_head",
                         "model.attention.qk_norm.weight=shared model.attention.qk_norm.zero_centered=true",
                         "model.attention.qk_norm.weight=none model.attention.logit_scale.kind=per_layer",
                         "model.attention.qk_norm.scope=full", "model.attention.qk_norm.kind=l2"};
  int number = 0;
  for (const char* form : forms) {
    const std::string name = fmt::format("form{}", number++);
    succeed(fmt::format("train run.yaml name={} optimizer.lr=3e-2 eval.every=null train.steps=6 {}", name, form));
    const std::string folded = name + ".h5";
    succeed("convert --fold " + checkpoint(name, 6) + " " + folded);
    EXPECT_NEAR(loss_of(folded), loss_of(checkpoint(name, 6)), 1e-4) << form;
    EXPECT_THAT(keel("inspect " + folded).output, ::testing::Not(HasSubstr("logit_scale"))) << form;
  }
  succeed(std::string(kBaseline) + "train.steps=1 schedule.warmup_steps=0");
  EXPECT_THAT(keel("convert --fold " + checkpoint("base", 1) + " out.h5").output, HasSubstr("has no QK-Norm"));
}

TEST_F(Retrofit, BeginsWithWeights) {
  succeed("train run.yaml name=first");
  const std::string weights = checkpoint("first", 20);
  succeed(
      "train run.yaml name=second seed=7 optimizer.lr=1e-20 train.steps=1 schedule.warmup_steps=0 "
      "checkpoint.weights_from=" +
      weights);
  EXPECT_NEAR(loss_of(checkpoint("second", 1)), loss_of(weights), 1e-4);
  EXPECT_THAT(metric("second", "step"), ::testing::Contains(1));
  // The same function: numbers where defaults were meant, and keys that say how weights begin and are trained.
  succeed(
      "train run.yaml name=third optimizer.lr=1e-20 train.steps=1 schedule.warmup_steps=0 model.attention.head_dim=8 "
      "model.attention.logit_scale.kind=per_head model.attention.logit_scale.init=0.35355339059327373 "
      "model.positions.max_positions=77 model.rope.local_theta=auto model.norm.weight_decay=true model.residual=bf16 "
      "model.init.std=0.5 'model.layer_pattern=[global, global]' checkpoint.weights_from=" +
      weights);
  EXPECT_NEAR(loss_of(checkpoint("third", 1)), loss_of(weights), 1e-4);
  const Ended other = keel(
      "train run.yaml name=fourth model.rope.theta=500 model.attention.logit_scale.init=0.5 checkpoint.weights_from=" +
      weights);
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.output, HasSubstr("model.attention.logit_scale.init: the weights of " + weights +
                                      " are of another model: there it is 0.35355338"));
  EXPECT_THAT(other.output, HasSubstr("here 0.5; differing as well: model.rope.theta"));
  EXPECT_THAT(other.output, ::testing::Not(HasSubstr("resume")));
}

}  // namespace
}  // namespace keel::testing
