// The ranks that share a layer's heads, features or vocabulary, as a layer sees them: where its sharded part begins and
// ends, and small sums. `parallel` implements it; a group of one changes nothing.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::nn {

class TensorGroup {
 public:
  virtual ~TensorGroup() = default;

  // Around a sharded part f (Shoeybi et al. 2019): y = leave(f(enter(x))). Forward, leave is the sum over the ranks, in
  // place, and enter the identity; backward the reverse.
  virtual void leave_forward(Tensor y) = 0;
  virtual void enter_backward(Tensor dx) = 0;

  // In place, over all ranks of the group.
  virtual void sum(Tensor x) = 0;
  virtual void maximum(Tensor x) = 0;
  // gathered [ranks, ...] = every rank's x, in rank order.
  virtual void gather(Tensor gathered, ConstTensor x) = 0;
  // How many ranks gather() gathers from.
  virtual int size() const = 0;
};

}  // namespace keel::nn
