#include "framework/optim/schedule.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/golden.h"

namespace keel::optim {
namespace {

TEST(Schedule, EqualsTheGoldenValues) {
  const auto golden = nlohmann::json::parse(std::ifstream(testing::golden_file("schedule.json")));
  ASSERT_GE(golden["cases"].size(), 3u);
  for (const auto& c : golden["cases"]) {
    const std::string kind = c["kind"];
    const Schedule schedule{.kind = kind == "cosine" ? ScheduleKind::cosine
                                    : kind == "wsd"  ? ScheduleKind::wsd
                                                     : ScheduleKind::constant,
                            .peak = c["peak"],
                            .warmup_steps = c["warmup"],
                            .total_steps = c["total"],
                            .decay_steps = c["decay"],
                            .final_ratio = c["final_share"]};
    for (size_t i = 0; i < c["values"].size(); ++i)
      EXPECT_NEAR(learning_rate(schedule, int64_t(i) + 1), c["values"][i].get<double>(), 1e-15)
          << c["name"] << " step " << i + 1;
  }
}

TEST(Schedule, WarmsUpFromTheFirstStep) {  // CASES R31
  const Schedule schedule{.peak = 8e-4, .warmup_steps = 5, .total_steps = 100};
  const double expected[] = {1.6e-4, 3.2e-4, 4.8e-4, 6.4e-4, 8e-4};
  for (int step = 1; step <= 5; ++step) EXPECT_NEAR(learning_rate(schedule, step), expected[step - 1], 1e-18);
}

TEST(Schedule, HasNoDivisionByZero) {
  for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::wsd, ScheduleKind::constant}) {
    const Schedule schedule{
        .kind = kind, .peak = 1, .warmup_steps = 0, .total_steps = 1, .decay_steps = 0, .final_ratio = 0.1};
    for (int64_t step : {0, 1, 2, 1000})
      EXPECT_TRUE(learning_rate(schedule, step) >= 0.1 - 1e-12 && learning_rate(schedule, step) <= 1);
  }
}

}  // namespace
}  // namespace keel::optim
