// The order of training samples, a pure function of (seed, global sample index): the same at every layout and after
// every resume, in O(1) memory. Sample i of a source is its tokens [i*T, i*T + T], T inputs and T targets.
//
// Sources form sets. One set: an epoch shows each sample of its sources once, in an order of its own; global index g is
// in epoch g / samples. Several sets: a fixed interleaving decides which set global index g takes its next sample from,
// and each set runs through shuffled epochs of its own, so that a small set with a large weight repeats sooner. There
// is no joint epoch. Among the first g samples, set s has w_s * g samples, rounded down or up, for every g.
//
// Samples never mix epochs: what a source holds beyond its last whole sample (at most T tokens) is not trained on, and
// an epoch that the training ends in is seen in part.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace keel::data {

struct SampleId {
  int source = -1;    // -1: no sample; a row without counted targets
  int64_t epoch = 0;  // of its set
  int64_t sample = 0;
  bool operator==(const SampleId&) const = default;
};

// Whole samples of T inputs and T targets: (tokens - 1) / T.
int64_t whole_samples(int64_t tokens, int64_t T);

// Which set each sample comes from. Weights are taken as fractions with a common denominator of at most 65536, the
// period: 0.7 and 0.3 repeat every 10 samples. Weights that are no such fractions are off by less than 1 / 65536.
// Within a period the set whose next sample is due first goes first (earliest deadline, Baruah et al. 1996,
// "Proportionate progress").
class Interleaving {
 public:
  // Errors: a weight that is not a finite number above 0, or below 1 / 65536 of the whole.
  explicit Interleaving(std::span<const double> weights);

  struct Place {
    int set;
    int64_t index;  // how many samples of that set came before
  };
  Place operator()(int64_t global) const;

  int64_t period() const { return int64_t(slots_.size()); }
  int64_t share(int set) const { return shares_[size_t(set)]; }  // samples of the set in a period

 private:
  struct Slot {
    uint16_t set;
    uint32_t before;  // samples of the set earlier in the period
  };
  std::vector<int64_t> shares_;
  std::vector<Slot> slots_;
};

// Sources that share epochs and a weight.
struct SampleSet {
  std::vector<int64_t> samples;  // of each source
  double weight = 1;
};
std::vector<double> weights_of(std::span<const SampleSet> sets);

class SampleOrder {
 public:
  // Sources are numbered through, set after set. Every set has a sample.
  SampleOrder(uint64_t seed, std::span<const SampleSet> sets);

  SampleId operator()(int64_t global) const;

 private:
  struct Set {
    int first_source;
    std::vector<int64_t> starts;  // first sample of each source, then how many there are
  };
  uint64_t key_;
  std::vector<Set> sets_;
  Interleaving interleaving_;
};

// The samples of a step that data rank `rank` of `ranks` trains on: contiguous blocks. Every tensor rank of a data rank
// asks with the same numbers. The step's size is a multiple of `ranks`.
template <class T>
std::span<T> slice_of_rank(std::span<T> step, int rank, int ranks) {
  const size_t count = step.size() / size_t(ranks);
  return step.subspan(size_t(rank) * count, count);
}

// Held-out text: every sample once, in order, source after source, the last one of each source in part. What lies past
// the end is no sample, so that all ranks can take the same number of steps and nothing counts twice.
class ValidationOrder {
 public:
  ValidationOrder(std::span<const int64_t> tokens, int64_t T);

  int64_t samples() const { return starts_.back(); }
  SampleId operator()(int64_t index) const;  // source -1 past the end

 private:
  std::vector<int64_t> starts_;  // first index of each source, then the number of samples
};

}  // namespace keel::data
