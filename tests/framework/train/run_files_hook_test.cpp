// What a run's files say, and what they must not wait for.
#include "framework/train/run_files_hook.h"

#include <gmock/gmock.h>

#include <future>
#include <nlohmann/json.hpp>

#include "tests/framework/io/event_file.h"
#include "tests/support/folder.h"

namespace keel::train {
namespace {

// CASES R77: where a run ends while a save is under way, other hooks still meet all ranks.
TEST(RunFilesHook, TheEndDoesNotWaitForOtherIo) {
  const testing::TemporaryFolder folder;
  io::IoThread io;
  RunFilesHook files(io, {.directory = folder / "", .speaker = true, .tensorboard = false, .throughput = {}});
  files.start({});
  StepReport report;
  report.step = 1;
  report.layers = report.heads = 1;
  report.largest_logit = {2};
  report.logit_bound = {8};
  files.after_step(report, {}, {});
  std::promise<void> open;
  io.submit([gate = open.get_future().share()](io::IoContext&) { gate.wait(); }, 0);
  auto end = std::async(std::launch::async, [&] { files.finish({}, {}); });
  EXPECT_EQ(end.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  open.set_value();
  end.get();
  io.run([](io::IoContext&) {});
  EXPECT_TRUE(std::filesystem::exists(folder / "telemetry.h5"));
  EXPECT_THAT(testing::read_bytes(folder / "metrics.jsonl"), ::testing::HasSubstr("\"bound_used\":0.25"));
}

// 600 tokens in 3 seconds, 60 or 40 operations each, of 16,000 a second.
TEST(RunFilesHook, MetricsAndTensorBoardSayTheSame) {
  const testing::TemporaryFolder folder;
  io::IoThread io;
  RunFilesHook files(
      io, {.directory = folder / "",
           .throughput = {.operations_full = 60, .operations_causal = 40, .peak_operations_per_second = 16000}});
  files.start({});
  StepReport report;
  report.step = 3;
  report.updates = 2;
  report.loss = 2.5;
  report.z_loss = 0.0625;
  report.gradient_norm = 0.75;
  report.update_norm = 0.25;
  report.lr = 0.125;
  report.tokens = 600;
  report.tokens_consumed = 1800;
  report.seconds = {.data = 0.25, .forward = 0.5, .backward = 1.25, .reduction = 0.375, .update = 0.625};
  report.layers = 1;
  report.heads = 2;
  report.largest_logit = {2, 4};
  files.after_step(report, {.action = Action::skip, .reason = ""}, {});
  files.scalars(3, std::vector<io::Scalar>{{"valid/loss", 2.25f}});
  files.finish({}, {});

  EXPECT_EQ(nlohmann::json::parse(testing::read_bytes(folder / "metrics.jsonl")),
            (nlohmann::json{{"step", 3},
                            {"updates", 2},
                            {"tokens", 1800},
                            {"loss", 2.5},
                            {"z_loss", 0.0625},
                            {"gradient_norm", 0.75},
                            {"update_norm", 0.25},
                            {"lr", 0.125},
                            {"largest_logit", 4.0},
                            {"tokens_per_second", 200.0},
                            {"mfu_full", 0.75},
                            {"mfu_causal", 0.5},
                            {"seconds_data", 0.25},
                            {"seconds_forward_backward", 1.75},
                            {"seconds_reduction", 0.375},
                            {"seconds_update", 0.625},
                            {"verdict", "skip"}}));
  const std::vector<io::Event> events = io::read_event_folder(folder / "tensorboard");
  ASSERT_EQ(events.size(), 3u);  // the first says what the file is
  EXPECT_EQ(events[1].step, 3);
  using Scalars = std::map<std::string, float>;
  EXPECT_EQ(Scalars(events[1].scalars.begin(), events[1].scalars.end()), (Scalars{{"train/loss", 2.5f},
                                                                                  {"train/gradient_norm", 0.75f},
                                                                                  {"train/lr", 0.125f},
                                                                                  {"train/z_loss", 0.0625f},
                                                                                  {"attention/largest_logit", 4.f},
                                                                                  {"speed/tokens_per_second", 200.f},
                                                                                  {"speed/mfu_full", 0.75f},
                                                                                  {"speed/mfu_causal", 0.5f}}));
  EXPECT_EQ(events[2].step, 3);
  EXPECT_EQ(Scalars(events[2].scalars.begin(), events[2].scalars.end()), (Scalars{{"valid/loss", 2.25f}}));
}

}  // namespace
}  // namespace keel::train
