#include "launch/train/sample_hook.h"

#include <gmock/gmock.h>

#include <cmath>

#include "framework/data/token_writer.h"
#include "framework/parallel/tensor_parallel.h"
#include "tests/support/folder.h"
#include "tests/support/toy_model.h"

namespace keel {
namespace {

// Whose held-out loss is always 1.
class EvenModel : public testing::ToyModel {
 public:
  void refresh() override {}
  void begin_step() override {}
  void forward_backward(Tensor, const nn::TokenBatch&, const nn::StepOptions&) override {}
  void evaluate(Tensor sums, const nn::TokenBatch&) override { add(sums, {.loss = 1, .counted = 1, .finite = 1}); }
};

// One that is never a target may have it, while the loss is a number: the run goes on, without that text.
TEST(SampleHook, ALogitThatIsNotFiniteEndsNoRun) {
  const testing::TemporaryFolder folder;
  const auto world = comm::make_self_communicator();
  parallel::Mesh mesh(*world, 1);
  parallel::TensorParallel group(mesh.tensor());
  models::Decoder decoder(models::read_decoder_config(
      config::parse("{kind: decoder, vocab: 257, hidden: 16, layers: 1, ffn: 16, attention: {heads: 2}}", "test")));
  decoder.allocate({.parameters = {}, .group = &group, .batch = {1, 8}, .training = false});
  decoder.initialise(1);
  data::TokenWriter writer(folder / "text", 257);
  writer.append(std::vector<int32_t>(9, 1));
  writer.end_document();
  writer.finish();
  const data::Dataset text({{folder / "text"}}, {.T = 8, .vocabulary = 257});
  train::Evaluation evaluation(text, {1, 8, 1}, false, 0);
  EvenModel model;
  io::IoThread io;
  train::RunFilesHook files(io, {.directory = folder / "", .speaker = false, .tensorboard = false, .throughput = {}});
  train::EvaluationHook evaluations(evaluation, model, mesh, files, {.every = 1, .total_steps = 9});
  const auto tokenizer = data::byte_tokenizer();
  SampleHook hook(evaluations, {decoder, group, *tokenizer, {}, 8},
                  {.prompts = {"ab"}, .tokens = 3, .path = folder / "samples.jsonl", .speaker = true});
  hook.start({});
  float& weight = *decoder.classifier().table->master.as<float>();
  const auto lines_after = [&](int64_t step, float value) {
    weight = value;
    decoder.parameters().round_to_compute();
    decoder.refresh();
    train::StepReport report;
    report.step = step;
    evaluations.after_step(report, {}, {.step = step});
    EXPECT_EQ(hook.after_step(report, {}, {.step = step}).action, train::Action::proceed);
    return io::read_json_lines(folder / "samples.jsonl").size();
  };
  EXPECT_EQ(lines_after(1, 0.5f), 1u);
  EXPECT_EQ(lines_after(2, -INFINITY), 1u);
  EXPECT_EQ(lines_after(3, 0.5f), 2u);
}

}  // namespace
}  // namespace keel
