// What a run leaves for people and programs: metrics.jsonl (a line per step), events.jsonl (what happened and why),
// TensorBoard scalars and telemetry.h5. Written by rank 0 alone; the other ranks' hook does nothing.
#pragma once

#include <memory>
#include <optional>
#include <set>

#include "framework/io/jsonl.h"
#include "framework/io/telemetry.h"
#include "framework/io/tensorboard.h"
#include "framework/train/hook.h"
#include "framework/train/telemetry_arrays.h"

namespace keel::train {

// For rates: per token, by the two conventions, and the machine's own product rate over all ranks.
struct Throughput {
  double operations_full = 0;    // 6 N + 12 L H d T
  double operations_causal = 0;  // 6 N + 6 L H d T
  double peak_operations_per_second = 0;

  double tokens_per_second(const StepReport& report) const { return double(report.tokens) / report.seconds.total(); }
  double mfu_full(const StepReport& report) const;
  double mfu_causal(const StepReport& report) const;
};

struct RunFilesOptions {
  std::string directory;
  bool speaker = true;  // rank 0
  bool tensorboard = true;
  Throughput throughput;
  bool rolled_back = false;  // earlier in this process: events after the step gone on from are history, and stay
};

class RunFilesHook : public Hook, public TelemetryArrays {
 public:
  // `io` outlives this.
  RunFilesHook(io::IoThread& io, const RunFilesOptions& options) : io_(io), options_(options) {}

  // On resume, lines and rows after the resumed step are dropped.
  void start(const Progress& progress) override;
  Verdict after_step(const StepReport& report, const Verdict& verdict, const Progress& progress) override;
  void finish(const Progress& progress, const Ending& ending) override;

  // A line in events.jsonl; noted before the run has started, it follows the line that says so.
  void note(const std::string& kind, const io::Json& fields);
  // Scalars that do not come from a step's report: evaluation.
  void scalars(int64_t step, std::span<const io::Scalar> scalars);
  // A line in metrics.jsonl beside those of steps.
  void metrics_line(const io::Json& line);
  // In telemetry.h5.
  void telemetry(const std::string& name, int64_t step, int64_t layers, const std::vector<float>& values) override;
  void telemetry(const std::string& name, int64_t step, const std::vector<uint64_t>& dims,
                 const std::vector<int64_t>& values) override;
  // Hands waiting telemetry to the I/O thread, so that it is on the disk before what is handed over later.
  void flush();

 private:
  void event(const std::string& kind, const io::Json& fields);
  void write_metrics(const StepReport& report, const Verdict& verdict);
  void write_telemetry(const StepReport& report);

  io::IoThread& io_;
  RunFilesOptions options_;
  std::vector<std::pair<std::string, io::Json>> noted_;
  std::optional<io::JsonLinesWriter> metrics_, events_;
  std::optional<io::TensorBoardWriter> tensorboard_;
  std::optional<io::Telemetry> telemetry_;
  std::set<std::string> declared_;  // arrays of telemetry.h5
};

}  // namespace keel::train
