// What the matrices of each layer hold, over all ranks: one pass over the weights, for telemetry steps.
#pragma once

#include <vector>

#include "framework/parallel/mesh.h"
#include "framework/parallel/pieces.h"

namespace keel::train {

class LayerStatistics {
 public:
  // Of the parameters that say which layer they are matrices of. All outlive this.
  LayerStatistics(nn::ParameterSet& parameters, parallel::Mesh& mesh, int64_t layers);

  // Each [L]. The shares are those of the compute copies' values that are saturated and flushed (ops/elementwise.h);
  // empty where products read fp32.
  struct Layers {
    std::vector<double> weight_norms;
    std::vector<float> saturated, flushed;
  };
  // Every logical element counts once, read where its piece is. Collective.
  const Layers& collect();

 private:
  parallel::Mesh& mesh_;
  struct Part {
    int64_t layer;
    Tensor master, compute;
  };
  std::vector<Part> parts_;       // of own pieces, those that this rank counts
  std::vector<double> elements_;  // [L]: logical
  OwnedTensor sums_, host_sums_;  // [L, 3] fp64: squares, saturated, flushed
  bool rounded_ = false;          // whether compute copies are bf16
  Layers layers_;
};

}  // namespace keel::train
