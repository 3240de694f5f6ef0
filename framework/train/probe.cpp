#include "framework/train/probe.h"

#include <algorithm>
#include <numeric>

#include "framework/ops/cross_entropy.h"
#include "framework/tensor/copy.h"

namespace keel::train {

Probe make_probe(const data::Dataset& dataset, int64_t length, bool document_mask) {
  constexpr int64_t kTokens = 64;  // training waits for their forward pass at each save
  Probe probe;
  probe.tokens.resize(size_t(length));
  probe.targets.resize(size_t(length));
  std::vector<int32_t> positions(document_mask ? size_t(length) : 0);
  const auto has_sample = [](const data::TokenFile& file) { return file.tokens() > 1; };
  const auto source = std::ranges::find_if(dataset.files(), has_sample) - dataset.files().begin();
  const data::SampleId first{.source = int(source)};
  dataset.fill(std::span(&first, 1), {probe.tokens, probe.targets, positions});
  probe.tokens.resize(size_t(std::min(length, kTokens)));
  probe.targets.resize(probe.tokens.size());
  return probe;
}

double probe_loss(nn::Model& model, const Probe& probe) {
  const Device device = model.parameters().device();
  const Shape shape = {1, int64_t(probe.tokens.size())};
  std::vector<int32_t> order(probe.tokens.size());
  std::iota(order.begin(), order.end(), 0);
  OwnedTensor tokens(shape, DType::i32, device), targets(shape, DType::i32, device),
      positions(shape, DType::i32, device);
  copy(tokens, ConstTensor(probe.tokens.data(), shape, DType::i32));
  copy(targets, ConstTensor(probe.targets.data(), shape, DType::i32));
  copy(positions, ConstTensor(order.data(), shape, DType::i32));
  const OwnedTensor sums({4}, DType::f64, device);
  zero(sums);
  model.evaluate(sums, {tokens, targets, positions, ConstTensor()});
  const HostTensor host(sums);
  return ops::CrossEntropySums::of(host.tensor().as<double>()).mean_loss();
}

}  // namespace keel::train
