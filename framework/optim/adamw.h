// AdamW over the spans of the parameter arenas that this rank updates. Owns the moments, from the start: a checkpoint
// always finds them.
#pragma once

#include <vector>

#include "framework/nn/parameter.h"
#include "framework/ops/adamw.h"

namespace keel::optim {

// Elements [begin, end) of one arena.
struct Span {
  int arena = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool counted =
      true;  // in sums over ranks: false where another rank of the tensor axis holds the same weights and counts them
  int64_t size() const { return end - begin; }
};

// What one update is told. Gains and biases are not decayed: the arena says so, by an explicit property of its
// parameters.
struct Update {
  double lr = 0;
  double decay = 0;           // the whole factor on decayed weights: lr * weight_decay, or independent of lr
  double gradient_scale = 1;  // clipping
  int64_t updates = 1;        // accepted ones, this one counted: the bias correction
};

struct AdamwOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
};

class Adamw {
 public:
  Adamw(nn::ParameterSet& parameters, std::vector<Span> spans, const AdamwOptions& options);

  // Updates master weights and their compute copies. Returns the sum of squares of the change of counted spans.
  double step(const Update& update);

  const std::vector<Span>& spans() const { return spans_; }
  // [span size] fp32, for checkpoints.
  Tensor moment1(size_t span) const { return moment(span, 0); }
  Tensor moment2(size_t span) const { return moment(span, moment2_begin_); }

 private:
  Tensor moment(size_t span, int64_t base) const;

  nn::ParameterSet& parameters_;
  std::vector<Span> spans_;
  std::vector<int64_t> offsets_;  // of each span in the moments
  int64_t moment2_begin_ = 0;
  AdamwOptions options_;
  Buffer moments_;
};

}  // namespace keel::optim
