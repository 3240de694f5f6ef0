#include "launch/bench/gpu_report.h"

#include <gmock/gmock.h>

#include "tests/support/folder.h"

namespace keel {
namespace {

using nlohmann::json;

// Anything may lie there: what was known before is written, and the report says what it could not read.
TEST(GpuReport, ResultsThatCannotBeReadAreAnErrorOfTheReport) {
  const testing::TemporaryFolder folder;
  testing::write_bytes(folder / "results", "test_a 0 1.5\ntest_b 1 2.5\n");
  testing::write_bytes(folder / "left_out", "test_c\n");
  const auto report_of = [&](const std::string& text) {
    testing::write_bytes(folder / "test_b.json", text);
    GpuReport report(folder / "report.json", 0);  // too late for any other part
    report.add_tests(folder / "");
    return json::parse(testing::read_bytes(folder / "report.json"));
  };
  const json odd = report_of(R"({"tests": 2, "testsuites": "none"})");
  EXPECT_EQ(odd["errors"].size(), 1u);
  EXPECT_TRUE(odd["errors"].contains("results of the tests"));
  EXPECT_FALSE(odd.contains("at"));
  const json good = report_of(R"({"tests": 2, "testsuites": [{"testsuite": [{"name": "x"}]}]})");
  EXPECT_TRUE(good["errors"].empty());
  EXPECT_EQ(good["tests"]["test_b"]["cases"], 2);
  EXPECT_EQ(good["left_out"], json({"test_c"}));
}

}  // namespace
}  // namespace keel
