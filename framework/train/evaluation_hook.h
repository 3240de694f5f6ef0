// Held-out loss every N steps and at the end of the run.
#pragma once

#include "framework/train/evaluation.h"
#include "framework/train/run_files_hook.h"

namespace keel::train {

class EvaluationHook : public Hook {
 public:
  // All outlive this. `every` 0: at the end only.
  EvaluationHook(Evaluation& evaluation, nn::Model& model, parallel::Mesh& mesh, RunFilesHook& files, int64_t every,
                 int64_t total_steps)
      : evaluation_(evaluation), model_(model), mesh_(mesh), files_(files), every_(every), total_steps_(total_steps) {}

  Verdict after_step(const StepReport& report, const Verdict& verdict, const Progress& progress) override;

 private:
  Evaluation& evaluation_;
  nn::Model& model_;
  parallel::Mesh& mesh_;
  RunFilesHook& files_;
  int64_t every_, total_steps_;
};

}  // namespace keel::train
