// nn::TensorGroup over a communicator: what the sharded layers exchange.
#pragma once

#include "framework/comm/communicator.h"
#include "framework/nn/tensor_group.h"

namespace keel::parallel {

class TensorParallel : public nn::TensorGroup {
 public:
  explicit TensorParallel(comm::Communicator& group) : group_(group) {}

  void leave_forward(Tensor y) override { sum(y); }
  void enter_backward(Tensor dx) override { sum(dx); }
  void sum(Tensor x) override { group_.all_reduce(x); }
  void maximum(Tensor x) override { group_.all_reduce(x, comm::Reduction::max); }
  void gather(Tensor gathered, ConstTensor x) override { group_.all_gather(gathered, x); }
  int size() const override { return group_.size(); }

 private:
  comm::Communicator& group_;
};

}  // namespace keel::parallel
