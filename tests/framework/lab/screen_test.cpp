// What `keel watch` shows, of folders made by hand.
#include "framework/lab/screen.h"

#include <gmock/gmock.h>

#include "framework/lab/ablation.h"
#include "tests/support/folder.h"

namespace keel::lab {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Screen, Sparklines) {
  EXPECT_EQ(sparkline({1, 2, 8}, 10), "1 ▁▂█ 8");
  EXPECT_EQ(sparkline({9, 1, 8}, 2), "1 ▁█ 8") << "the last ones";
  EXPECT_EQ(sparkline({1, std::nan(""), 1}, 10), "1 ▁x▁ 1");
  EXPECT_EQ(sparkline({}, 10), "");
}

TEST(Screen, ShowsInfinitiesAsTheReportDoes) {
  testing::TemporaryFolder folder;
  io::JsonLinesWriter metrics(folder / "metrics.jsonl");
  metrics.write({{"step", 1}, {"loss", 5.0}, {"largest_logit", 3.0}});
  metrics.write({{"step", 2}, {"loss", INFINITY}, {"largest_logit", INFINITY}});
  const std::vector<std::string> lines = screen_of(folder / "", {});
  EXPECT_THAT(lines[1], ::testing::ContainsRegex("^loss +inf"));
  EXPECT_THAT(lines[2], ::testing::ContainsRegex("^max logit +inf"));
}

// An evaluation every 500 steps, of which the sparklines show the last 250 or so.
TEST(Screen, ShowsTheLastHeldOutLossHoweverLongAgo) {
  testing::TemporaryFolder folder;
  io::JsonLinesWriter metrics(folder / "metrics.jsonl");
  const std::string filler(400, 'x');
  auto steps = [&](int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step)
      metrics.write({{"step", step}, {"loss", 5.0}, {"largest_logit", 3.0}, {"filler", filler}});
  };
  steps(1, 500);
  EXPECT_THAT(screen_of(folder / "", {})[3], ::testing::ContainsRegex("^held-out +none yet"));
  metrics.write({{"step", 500}, {"valid_loss", 4.25}});
  steps(501, 999);
  metrics.write({{"step", 1000}, {"valid_loss", 4.125}});
  steps(1001, 1999);
  EXPECT_THAT(screen_of(folder / "", {})[3], ::testing::ContainsRegex("^held-out +4.1250  at step 1000"));
}

class AblationScreen : public ::testing::Test {
 protected:
  // Cells named 0, 1, ..., all of which have made `steps` steps and skipped each.
  void make(size_t cells, int64_t steps) {
    Plan plan{.name = "study", .baseline = "a", .arms = {{"a", {}}}, .seeds = {1}};
    for (size_t i = 0; i < cells; ++i) plan.cells.push_back({std::to_string(i), "a", {}, 1, {}});
    io::write_file(path_ + "/ablation.json", to_json(plan).dump());
    for (const Cell& cell : plan.cells) {
      const std::string directory = cell_directory(path_, cell);
      io::create_directories(directory);
      io::JsonLinesWriter metrics(directory + "/metrics.jsonl"), events(directory + "/events.jsonl");
      events.write({{"event", "start"}, {"step", 0}});
      for (int64_t step = 1; step <= steps; ++step) {
        metrics.write({{"step", step}, {"loss", 5.0}, {"largest_logit", 3.0}});
        events.write({{"event", "skip"}, {"step", step}, {"reason", "loss 9 is a spike"}});
        events.write({{"event", "saved"}, {"step", step}});
      }
    }
  }
  std::string events_of(const char* cell) const { return path_ + "/cells/" + cell + "/events.jsonl"; }

  testing::TemporaryFolder folder_;
  std::string path_ = folder_ / "";
};

TEST_F(AblationScreen, ShowsWhatTroublesTheCellsAtWork) {
  make(3, 2);
  write_result(path_ + "/cells/2", {});
  io::JsonLinesWriter(events_of("1")).write({{"event", "rolled_back"}, {"step", 3}, {"reason", "loss"}});
  const std::vector<std::string> lines = screen_of(path_, {.rows = 24, .columns = 100});
  const std::string events = fmt::format("{}", fmt::join(std::span(lines).subspan(4), "\n"));
  EXPECT_THAT(events, ::testing::ContainsRegex("0 +step 2 +skip +loss 9 is a spike"));
  EXPECT_THAT(events, ::testing::ContainsRegex("1 +step 3 +rolled_back +loss"));
  EXPECT_EQ(lines.size(), 4 + 1 + 2 + 3u) << "cells, an empty line, the events of two cells: " << events;
  for (const char* bookkeeping : {"saved", "start"}) EXPECT_THAT(events, Not(HasSubstr(bookkeeping)));
}

TEST_F(AblationScreen, EventsKeepAThirdOfAFullScreen) {
  make(30, 50);
  const std::vector<std::string> lines = screen_of(path_, {.rows = 12, .columns = 100});
  ASSERT_EQ(lines.size(), 12u);
  EXPECT_THAT(lines[7], HasSubstr("... and 24 more"));
  for (size_t i = 9; i < 12; ++i) EXPECT_THAT(lines[i], HasSubstr("step 50       skip")) << "the last of each";
}

TEST_F(AblationScreen, NeverHasMoreRowsThanTheTerminal) {
  make(2, 3);
  for (size_t rows = 1; rows < 15; ++rows) EXPECT_LE(screen_of(path_, {.rows = rows, .columns = 80}).size(), rows);
}

}  // namespace
}  // namespace keel::lab
