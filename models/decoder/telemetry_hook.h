// Records what a decoder knows about itself, into telemetry.h5 and metrics.jsonl.
//
// Every step, with the gains and scales that its forward pass used: `logit_bound` [L, H], what QK-Norm guaranteed for
// every head (bounds.h), and in metrics.jsonl `bound_used`, the largest share of it that a logit reached. Nothing where
// no layer has QK-Norm; layers without it have the bound infinity.
// Telemetry steps: `q_gain` [L, H], `k_gain` [L, G], the largest effective |gain| of each head; `logit_scale` [L, H],
// |g|; `stream_outliers` [L, 1], the share of |x| > 6 in the residual stream, and its kurtosis about 0,
// `stream_kurtosis` [L, 1]; `parallel` [L, H], the share of |cos(q, k)| > 0.95 (probe.h).
#pragma once

#include "framework/train/head_statistics.h"
#include "framework/train/run_files_hook.h"
#include "models/decoder/decoder.h"

namespace keel::models {

class TelemetryHook : public train::Hook {
 public:
  // All outlive this. Comes after every hook that changes weights: it reads the gains of a step when the one before
  // ends.
  TelemetryHook(Decoder& decoder, parallel::Mesh& mesh, train::RunFilesHook& files);

  void start(const train::Progress&) override { read_gains(); }
  train::Verdict judge(const train::StepReport& report) override;
  train::Verdict after_step(const train::StepReport&, const train::Verdict&, const train::Progress&) override;

 private:
  // For the next step's report: by then its update has changed them.
  void read_gains();
  void read_gains(int64_t layer);
  void record_bounds(const train::StepReport& report);
  void record_gains(int64_t step);
  void record_probe(const train::StepReport& report);
  // One array of this rank to the file.
  void record(const std::string& name, int64_t step, ConstTensor own, int64_t width, comm::Reduction reduction);

  Decoder& decoder_;
  parallel::Mesh& mesh_;
  train::RunFilesHook& files_;
  train::HeadStatistics heads_;
  int64_t layers_;
  std::vector<double> factors_;                      // [L]: bound_factor
  bool bounded_;                                     // whether any layer has a bound
  OwnedTensor bounds_, q_gains_, k_gains_, scales_;  // of this rank's heads, [L, H], [L, H], [L, G], [L, H]
  std::vector<float> whole_, weights_;
};

}  // namespace keel::models
