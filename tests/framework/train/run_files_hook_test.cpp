// What a run's files must not wait for.
#include "framework/train/run_files_hook.h"

#include <gmock/gmock.h>

#include <future>

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

}  // namespace
}  // namespace keel::train
