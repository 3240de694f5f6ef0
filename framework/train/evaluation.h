// Loss on held-out text: every sample once, divided over the data ranks.
#pragma once

#include <functional>
#include <optional>

#include "framework/parallel/mesh.h"
#include "framework/train/batches.h"

namespace keel::train {

struct EvaluationResult {
  double loss = 0;           // nats per counted token
  double nats_per_byte = 0;  // 0 where the data's notes do not say how many bytes its tokens stand for
  int64_t counted_tokens = 0;
  double seconds = 0;
};

class Evaluation {
 public:
  // `sequences`: how many samples, from the first on; 0 = all. Everything outlives this.
  // `device`: where the model lies.
  Evaluation(const data::Dataset& dataset, const BatchSizes& sizes, bool document_mask, int64_t sequences,
             Device device = {});

  // Collective over the mesh. Nothing where `interrupted` said yes on any rank meanwhile.
  std::optional<EvaluationResult> run(nn::Model& model, parallel::Mesh& mesh,
                                      const std::function<bool()>& interrupted = {});

 private:
  const data::Dataset& dataset_;
  data::ValidationOrder order_;
  StepBatches batches_;
  OwnedTensor sums_;  // ops::CrossEntropySums
  int64_t samples_;
  std::vector<data::SampleId> rows_;
};

}  // namespace keel::train
