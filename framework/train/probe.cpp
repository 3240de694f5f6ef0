#include "framework/train/probe.h"

#include <numeric>

namespace keel::train {

Probe make_probe(const data::Dataset& dataset, int64_t length, bool document_mask) {
  constexpr int64_t kTokens = 256;
  Probe probe;
  probe.tokens.resize(size_t(length));
  probe.targets.resize(size_t(length));
  std::vector<int32_t> positions(document_mask ? size_t(length) : 0);
  const data::SampleId first{.source = 0};
  dataset.fill(std::span(&first, 1), {probe.tokens, probe.targets, positions});
  probe.tokens.resize(size_t(std::min(length, kTokens)));
  probe.targets.resize(probe.tokens.size());
  return probe;
}

double probe_loss(nn::Model& model, const Probe& probe) {
  const Shape shape = {1, int64_t(probe.tokens.size())};
  std::vector<int32_t> positions(probe.tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  auto tensor = [&](const std::vector<int32_t>& ids) { return ConstTensor(ids.data(), shape, DType::i32); };
  const ops::CrossEntropySums sums =
      model.evaluate({tensor(probe.tokens), tensor(probe.targets), tensor(positions), ConstTensor()});
  return sums.loss / double(std::max<int64_t>(1, sums.counted));
}

}  // namespace keel::train
