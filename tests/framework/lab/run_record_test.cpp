// What is read of a long run: as much as a report shows, with its extremes.
#include "framework/lab/run_record.h"

#include <gmock/gmock.h>

#include "framework/io/telemetry.h"
#include "framework/lab/run_report.h"
#include "tests/support/folder.h"

namespace keel::lab {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kLayers = 4, kHeads = 16, kAll = kLayers * kHeads;

class LongRun : public ::testing::Test {
 protected:
  // Every step has logits of 1 below bounds of 10; every tenth, and the last, has entropies of 2 and places.
  void write(int64_t steps) {
    io::Telemetry telemetry(io_, folder_ / "telemetry.h5", 0, 4096);
    for (const char* name : {"largest_logit", "logit_bound", "entropy"}) telemetry.declare(name, {kLayers, kHeads});
    telemetry.declare("largest_logit_place", {kLayers, kHeads, 4});
    std::string metrics;
    for (int64_t step = 1; step <= steps; ++step) {
      std::vector<float> logits(kAll, 1), entropies(kAll, 2);
      if (step == kPeakStep) logits[kPeakHead] = 9;
      if (step == kPeakStep) entropies[kPeakHead] = 0.25f;
      if (step == steps) logits[5] = 3;
      telemetry.append("largest_logit", step, logits);
      telemetry.append("logit_bound", step, std::vector<float>(kAll, 10));
      if (step % 10 == 0 || step == steps) {
        telemetry.append("entropy", step, entropies);
        std::vector<int64_t> places(4 * kAll, -1);
        for (int64_t i = 0; i < 4; ++i) places[size_t(4 * 5 + i)] = 100 * i;
        if (step == kPeakStep) places[4 * kPeakHead] = 0, places[4 * kPeakHead + 2] = 77, places[4 * kPeakHead + 3] = 7;
        telemetry.append("largest_logit_place", step, places);
      }
      const double loss = step == kPeakStep ? 8.125 : 4, norm = step == kPeakStep + 1 ? 0.015625 : 1;
      metrics += io::json_line({{"step", step}, {"loss", loss}, {"largest_logit", 1.0}, {"gradient_norm", norm}});
    }
    io::write_file(folder_ / "metrics.jsonl", metrics);
    telemetry.flush();
    io_.run([](io::IoContext&) {});  // which comes after all that is queued
  }

  RunRecord read() { return read_run(io_, folder_ / ""); }

  static constexpr int64_t kPeakStep = 12340;
  static constexpr size_t kPeakHead = 37;
  testing::TemporaryFolder folder_;
  io::IoThread io_;
};

TEST_F(LongRun, IsReadInFewRowsThatKeepItsExtremes) {
  write(20000);
  const RunRecord run = read();
  for (const char* name : {"largest_logit", "logit_bound", "bound_used", "entropy", "largest_logit_distance"}) {
    const HeadRecord& record = *run.head(name);
    EXPECT_LE(record.steps.size(), kMostHeadRows) << name;
    EXPECT_EQ(record.steps.back(), 20000) << name;
    ASSERT_EQ(record.values.size(), record.steps.size() * kAll) << name;
    const auto peak = std::ranges::find_if(record.steps, [](int64_t step) { return step >= kPeakStep; });
    const size_t row = size_t(peak - record.steps.begin());
    const std::map<std::string, std::pair<float, float>> peak_and_rest = {{"largest_logit", {9, 1}},
                                                                          {"logit_bound", {10, 10}},
                                                                          {"bound_used", {0.9f, 0.1f}},
                                                                          {"entropy", {0.25f, 2}},
                                                                          {"largest_logit_distance", {70, NAN}}};
    const auto [extreme, rest] = peak_and_rest.at(name);
    EXPECT_EQ(record.row(row)[kPeakHead], extreme) << name;
    for (size_t other : {row - 1, row + 1})
      EXPECT_THAT(record.row(other)[kPeakHead], ::testing::NanSensitiveFloatEq(rest)) << name;
  }
  EXPECT_EQ(run.head("largest_logit")->each, 125u);
  EXPECT_EQ(run.head("largest_logit")->last_row()[5], 3);
  EXPECT_EQ(run.head("largest_logit")->last_row()[kPeakHead], 1) << "of the last step, not of those around it";
  EXPECT_EQ(run.places_step, 20000);
  ASSERT_EQ(run.places.size(), kAll);
  EXPECT_EQ(run.places[5].key, 300);
  EXPECT_EQ(run.places[5].logit, 3);
}

TEST_F(LongRun, MakesASmallPage) {
  write(20000);
  const Page page = run_report(read(), "");
  EXPECT_LT(page.text().size(), 5u << 20);
  EXPECT_THAT(page.text(), HasSubstr("Each column, in the CSV too, is the largest of 125 rows of telemetry.h5."));
  EXPECT_THAT(page.text(), HasSubstr("Each column, in the CSV too, is the least of 13 rows of telemetry.h5."));
  for (const Picture& picture : page.pictures()) EXPECT_LT(picture.light.size(), 300u << 10) << picture.name;
}

// Of steps that are all read, nothing is reduced.
TEST_F(LongRun, AShortRunIsReadAsItIs) {
  write(160);
  const RunRecord run = read();
  ASSERT_TRUE(run.head("largest_logit"));
  const HeadRecord& record = *run.head("largest_logit");
  EXPECT_EQ(record.each, 1u);
  EXPECT_EQ(record.steps.size(), 160u);
  EXPECT_EQ(record.last_row()[5], 3);
}

}  // namespace
}  // namespace keel::lab
