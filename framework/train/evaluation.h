// Loss on held-out text: every sample once, divided over the data ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "framework/data/text_bytes.h"
#include "framework/parallel/mesh.h"
#include "framework/train/batches.h"

namespace keel::train {

struct EvaluationResult {
  double loss = 0;           // nats per counted token
  double nats_per_byte = 0;  // of the text of the counted tokens; 0 where the tokenizer of a source is not known
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
  double target_bytes() const;

  std::vector<std::shared_ptr<const data::TextBytes>>
      text_bytes_;  // by source, or none; shared where they are the same
  data::ValidationOrder order_;
  StepBatches batches_;
  OwnedTensor sums_;  // ops::CrossEntropySums
  int64_t samples_;
  std::vector<data::SampleId> rows_;
};

}  // namespace keel::train
