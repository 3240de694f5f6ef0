#include "framework/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/base/error.h"
#include "framework/base/rng.h"

namespace keel::data {
namespace {

constexpr int64_t kLongestPeriod = 65536;

// Whole shares of a period: exact where the weights allow it, else the nearest (largest remainder, Hamilton).
std::vector<int64_t> rounded_shares(std::span<const double> weights, double total, int64_t period) {
  std::vector<int64_t> shares(weights.size()), by_remainder(weights.size());
  auto exact = [&](int64_t s) { return weights[size_t(s)] / total * double(period); };
  for (size_t s = 0; s < weights.size(); ++s) shares[s] = int64_t(std::floor(exact(int64_t(s)) + 1e-6));
  std::iota(by_remainder.begin(), by_remainder.end(), 0);
  std::stable_sort(by_remainder.begin(), by_remainder.end(), [&](int64_t a, int64_t b) {
    return exact(a) - double(shares[size_t(a)]) > exact(b) - double(shares[size_t(b)]);
  });
  const int64_t missing = period - std::accumulate(shares.begin(), shares.end(), int64_t(0));
  for (int64_t i = 0; i < missing; ++i) ++shares[size_t(by_remainder[size_t(i)])];
  return shares;
}

std::vector<int64_t> find_shares(std::span<const double> weights) {
  double total = 0;
  for (double weight : weights) {
    if (!std::isfinite(weight) || weight <= 0)
      throw input_error("a data source has the weight {}; weights are numbers above 0 (leave the source out instead)",
                        weight);
    total += weight;
  }
  for (double weight : weights)
    if (weight / total < 1.0 / double(kLongestPeriod))
      throw input_error("a data source has the weight {} of {} in all; below 1/{} it cannot be kept", weight, total,
                        kLongestPeriod);
  auto is_exact = [&](int64_t period) {
    return std::all_of(weights.begin(), weights.end(), [&](double weight) {
      const double share = weight / total * double(period);
      return share > 0.5 && std::abs(share - std::round(share)) < 1e-9 * double(period);
    });
  };
  int64_t period = 1;
  while (period < kLongestPeriod && !is_exact(period)) ++period;
  return rounded_shares(weights, total, period);
}

}  // namespace

int64_t whole_samples(int64_t tokens, int64_t T) {
  require(T > 0, "samples of {} tokens", T);
  return tokens > 0 ? (tokens - 1) / T : 0;
}

Interleaving::Interleaving(std::span<const double> weights) : shares_(find_shares(weights)) {
  const int64_t period = std::accumulate(shares_.begin(), shares_.end(), int64_t(0));
  std::vector<int64_t> taken(shares_.size(), 0);
  for (int64_t slot = 0; slot < period; ++slot) {
    size_t next = shares_.size();
    int64_t next_deadline = 0;
    for (size_t s = 0; s < shares_.size(); ++s) {
      // Sample j of a source with share p may be taken in slots [floor(j P / p), ceil((j + 1) P / p)) of the period P.
      const int64_t p = shares_[s], release = taken[s] * period / p, deadline = ((taken[s] + 1) * period + p - 1) / p;
      if (release > slot || (next < shares_.size() && deadline >= next_deadline)) continue;
      next = s;
      next_deadline = deadline;
    }
    require(next < shares_.size() && next_deadline > slot, "no source is due in slot {} of {}", slot, period);
    slots_.push_back({uint16_t(next), uint32_t(taken[next]++)});
  }
}

Interleaving::Place Interleaving::operator()(int64_t global) const {
  const Slot& slot = slots_[size_t(global % period())];
  return {slot.set, global / period() * shares_[slot.set] + slot.before};
}

std::vector<double> weights_of(std::span<const SampleSet> sets) {
  std::vector<double> weights;
  for (const SampleSet& set : sets) weights.push_back(set.weight);
  return weights;
}

SampleOrder::SampleOrder(uint64_t seed, std::span<const SampleSet> sets)
    : key_(key_of(seed, "sample order")), interleaving_(weights_of(sets)) {
  int source = 0;
  for (const SampleSet& set : sets) {
    sets_.push_back({source, {0}});
    for (const int64_t count : set.samples) sets_.back().starts.push_back(sets_.back().starts.back() + count);
    require(sets_.back().starts.back() > 0, "a set without samples");
    source += int(set.samples.size());
  }
}

SampleId SampleOrder::operator()(int64_t global) const {
  require(global >= 0, "global sample index {}", global);
  const auto [number, index] = interleaving_(global);
  const auto& [first_source, starts] = sets_[size_t(number)];
  const int64_t samples = starts.back(), epoch = index / samples;
  const auto words = philox(key_, uint64_t(epoch), uint64_t(number));
  const Permutation shuffle(uint64_t(words[0]) << 32 | words[1], uint64_t(samples));
  const auto sample = int64_t(shuffle(uint64_t(index % samples)));
  const auto after = std::upper_bound(starts.begin(), starts.end(), sample);
  return {first_source + int(after - starts.begin()) - 1, epoch, sample - *(after - 1)};
}

ValidationOrder::ValidationOrder(std::span<const int64_t> tokens, int64_t T) : starts_(1, 0) {
  require(T > 0, "samples of {} tokens", T);
  for (int64_t count : tokens) starts_.push_back(starts_.back() + (count > 1 ? (count - 1 + T - 1) / T : 0));
}

SampleId ValidationOrder::operator()(int64_t index) const {
  require(index >= 0, "validation sample {}", index);
  if (index >= samples()) return {};
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), index);
  return {int(after - starts_.begin()) - 1, 0, index - *(after - 1)};
}

}  // namespace keel::data
