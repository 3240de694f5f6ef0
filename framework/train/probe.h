// A few tokens and their loss, stored with the weights: a model that they are loaded into must give the same loss, or
// something that no checksum sees has changed (a convention, a formula, a library).
#pragma once

#include "framework/data/dataset.h"
#include "framework/nn/model.h"

namespace keel::train {

struct Probe {
  std::vector<int32_t> tokens, targets;  // one sequence; -1: not counted
  double loss = 0;                       // mean over counted targets
  bool empty() const { return tokens.empty(); }
};

// The first tokens of the first source that has any to predict; no loss yet.
Probe make_probe(const data::Dataset& dataset, int64_t length, bool document_mask);
// With the model as it is: its weights are published and packed. Collective over the tensor axis; the same on all
// ranks.
double probe_loss(nn::Model& model, const Probe& probe);

}  // namespace keel::train
