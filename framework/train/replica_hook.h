// Checks at the start and every N steps that replicas of weights are the same bits (parallel/replica_check.h).
#pragma once

#include "framework/parallel/replica_check.h"
#include "framework/train/hook.h"

namespace keel::train {

class ReplicaHook : public Hook {
 public:
  // Both outlive this. `every` 0: never.
  ReplicaHook(nn::ParameterSet& parameters, parallel::Mesh& mesh, int64_t every)
      : parameters_(parameters), mesh_(mesh), every_(every) {}

  void start(const Progress& progress) override {
    if (every_ > 0) parallel::require_same_replicas(parameters_, mesh_, progress.step);
  }
  Verdict after_step(const StepReport& report, const Verdict&, const Progress&) override {
    if (every_ > 0 && report.step % every_ == 0) parallel::require_same_replicas(parameters_, mesh_, report.step);
    return {};
  }

 private:
  nn::ParameterSet& parameters_;
  parallel::Mesh& mesh_;
  int64_t every_;
};

}  // namespace keel::train
