// What keel bench times is what a training step does.
#include "launch/bench/bench_passes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "framework/base/trace.h"

namespace keel {
namespace {

// Names of the spans of what f does.
template <class F>
std::set<std::string> spans_of(const F& f) {
  trace::start();
  f();
  const auto text = nlohmann::json::parse(trace::stop(0));
  EXPECT_EQ(text.at("otherData").at("spans_left_out"), 0);
  std::set<std::string> names;
  for (const auto& event : text.at("traceEvents"))
    if (event.at("ph") == "X") names.insert(event.at("name"));
  return names;
}

TEST(BenchPasses, TimeAllThatTelemetryAddsToAStep) {
  const auto alone = comm::make_self_communicator();
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    const FullConfig config = parse_full_config(
        fmt::format("{{name: test, precision: {}, model: {{kind: decoder, hidden: 32, layers: 2, ffn: 48, vocab: 64, "
                    "attention: "
                    "{{heads: 4}}}}, data: {{train: none, sequence_length: 16}}, batch: {{sequences: 2}}, train: "
                    "{{steps: 1}}}}",
                    precision),
        "test", {});
    BenchedStep step(*alone, config, {});
    const std::set<std::string> plain = spans_of([&] { step.run(false); });
    EXPECT_EQ(step.hook_seconds(), 0);
    const auto beside = [&plain](std::set<std::string> names) {
      for (const std::string& name : plain) names.erase(name);
      return names;
    };
    const std::set<std::string> with = spans_of([&] { step.run(true); });
    EXPECT_GT(step.hook_seconds(), 0);
    std::set<std::string> expected = {"add_moments", "add_parallel_pairs", "qk_add_mean_squares"};
    if (precision == std::string_view("bf16")) expected.insert("add_out_of_range");
    EXPECT_EQ(beside(with), expected);
    const std::set<std::string> timed = spans_of([&] { telemetry_pass(step); });
    EXPECT_TRUE(timed.contains("attention_forward"));
    EXPECT_EQ(beside(timed), expected);
  }
}

}  // namespace
}  // namespace keel
