// Records what QK-Norm guaranteed for every head in every step (bounds.h), with the gains and scales that the step's
// forward pass used: `logit_bound` [L, H] in telemetry.h5, and in metrics.jsonl `bound_used`, the largest share of its
// bound that a head's logit reached. Nothing where no layer has QK-Norm; layers without it have the bound infinity.
#pragma once

#include "framework/train/head_statistics.h"
#include "framework/train/run_files_hook.h"
#include "models/decoder/decoder.h"

namespace keel::models {

class BoundHook : public train::Hook {
 public:
  // All outlive this.
  BoundHook(Decoder& decoder, parallel::Mesh& mesh, train::RunFilesHook& files);

  train::Verdict before_update(const train::StepReport& report) override;

 private:
  void bound_layer(int64_t layer);

  Decoder& decoder_;
  train::RunFilesHook& files_;
  train::HeadStatistics heads_;
  std::vector<double> factors_;  // [L]
  OwnedTensor own_;              // [L, heads of this rank]
  std::vector<float> whole_, gains_;
};

}  // namespace keel::models
