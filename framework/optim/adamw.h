// AdamW over the spans of the parameter arenas that this rank updates. Owns the moments, from the start: a checkpoint
// always finds them.
#pragma once

#include <vector>

#include "framework/nn/parameter.h"
#include "framework/ops/update/adamw.h"

namespace keel::optim {

class Adamw {
 public:
  Adamw(nn::ParameterSet& parameters, std::vector<nn::ArenaRange> spans, const ops::AdamwOptions& options);

  // Updates master weights and, unless they are rounded stochastically, their compute copies. change [1 + layers] fp64
  // += the sums of squares of the change of counted spans, each layer's matrices in a place of its own, everything else
  // in the first. rates and gate lie where the parameters do (ops::AdamwControls). Whether weights are decayed, their
  // arena says.
  void step(Tensor change, ConstTensor rates, ConstTensor gate);
  ops::AdamwRates rates(const ops::AdamwStep& step) const { return ops::adamw_rates(step, options_); }

  const std::vector<nn::ArenaRange>& spans() const { return spans_; }
  // [span size] fp32, for checkpoints.
  Tensor moment1(size_t span) const { return moment(span, 0); }
  Tensor moment2(size_t span) const { return moment(span, moment2_begin_); }

 private:
  Tensor moment(size_t span, int64_t base) const;

  nn::ParameterSet& parameters_;
  std::vector<nn::ArenaRange> spans_;
  std::vector<int64_t> offsets_;  // of each span in the moments
  int64_t moment2_begin_ = 0;
  ops::AdamwOptions options_;
  Buffer moments_;
  OwnedTensor uncounted_;  // where the other spans' change goes
};

}  // namespace keel::optim
