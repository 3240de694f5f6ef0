// A directory with a small corpus and a small config, and the program run in it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoints/reader.h"
#include "framework/base/rng.h"
#include "tests/support/command.h"

namespace keel::testing {

class RunFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::temp_directory_path() /
                 fmt::format("keel_{}_{}_{}", info->test_suite_name(), info->name(), getpid());
    std::filesystem::create_directories(directory_);
    std::ofstream text(directory_ / "text.txt");
    const char* words[] = {"the ", "norm ", "of a ", "query ", "and of ", "its key ", "bounds ", "every logit. ", "\n"};
    for (int i = 0; i < 6000; ++i) text << words[size_t(uniform(7, uint64_t(i)) * 9)];
    text.close();
    ASSERT_EQ(keel("tokenize text.txt --out corpus --valid 0.1").code, 0);
    write_config("run.yaml", kConfig);
  }
  void TearDown() override {
    if (!HasFailure()) std::filesystem::remove_all(directory_);
  }

  void write_config(const std::string& name, const std::string& text) { std::ofstream(directory_ / name) << text; }

  // In the fixture's directory; under mpirun where ranks > 0. `environment`: NAME=VALUE of them.
  Ended keel(const std::string& arguments, int ranks = 0, const std::string& environment = "") {
    const std::string launcher =
        ranks > 0 ? fmt::format("{} --oversubscribe --bind-to none -n {} ", MPIRUN, ranks) : "";
    return run_command(fmt::format("cd {} && env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {} {}{} {}",
                                   directory_.string(), environment, launcher, KEEL_PROGRAM, arguments));
  }

  // The value of a key on every step's line of a run's metrics.
  std::vector<double> metric(const std::string& run, const std::string& key) {
    std::vector<double> values;
    std::ifstream file(directory_ / "runs" / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto object = nlohmann::json::parse(line);
      if (!object.contains(key)) continue;
      values.push_back(object[key].is_number() ? object[key].get<double>() : std::nan(""));
    }
    return values;
  }

  // Of a rank's trace that begins at this step.
  std::vector<nlohmann::json> spans(const std::string& run, int step, int rank) {
    std::vector<nlohmann::json> spans;
    std::ifstream file(directory_ / "runs" / run / fmt::format("traces/step-{}-rank-{}.json", step, rank));
    const auto trace = nlohmann::json::parse(file);
    for (const auto& event : trace.at("traceEvents"))
      if (event.at("ph") == "X") spans.push_back(event);
    return spans;
  }

  std::string checkpoint(const std::string& run, int step) {
    return (directory_ / "runs" / run / "checkpoints" / fmt::format("step-{:08}.h5", step)).string();
  }

  std::filesystem::path directory_;
  static constexpr const char* kConfig = R"(
precision: fp32
model: {kind: decoder, hidden: 32, layers: 2, ffn: 64, attention: {heads: 4, kv_heads: 2}}
data: {train: corpus, valid: corpus-valid, sequence_length: 32}
batch: {sequences: 8, micro_sequences: 2}
optimizer: {lr: 3e-3}
schedule: {warmup_steps: 5}
train: {steps: 20}
eval: {every: 10, sequences: 8}
checkpoint: {every: 5, keep: 10}
telemetry: {every: 5}
)";
};

// All three tensors of every parameter, of two files, bit for bit.
inline void expect_same_tensors(const std::string& a, const std::string& b) {
  const Ended ended = run_command(fmt::format(
      "h5diff -q {} {} /parameters && h5diff -q {} {} /moment1 && h5diff -q {} {} /moment2", a, b, a, b, a, b));
  EXPECT_EQ(ended.code, 0) << a << " and " << b << " differ: " << ended.output;
}

}  // namespace keel::testing
