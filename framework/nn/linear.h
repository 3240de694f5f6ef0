// y = x W^T + b     x [n, K], W [N, K], b [N]
// Several weights that lie side by side (q, k, v; gate, up) make one product: their rows, stacked, are W.
#pragma once

#include "framework/nn/context.h"
#include "framework/ops/matmul/matmul.h"

namespace keel::nn {

struct LinearSpec {
  std::vector<std::string> names;  // "blocks.0.attention.q", ...: parameters NAME.weight and NAME.bias
  std::vector<int64_t> outputs;    // logical N of each
  int64_t inputs = 0;              // logical K
  bool bias = false;
  Init init;
  ops::WideRows wide = {};
};

class Linear {
 public:
  Linear(ParameterSet& parameters, const LinearSpec& spec);

  // Packs the weights; after every change of them.
  void refresh();
  int64_t outputs() const;  // this rank's N
  int64_t packed_bytes() const { return packed_.size_bytes(); }

  // y [n, N]
  void forward(Tensor y, ConstTensor x) const;
  // dx [n, K]; dW and db are accumulated. x is forward's.
  void backward(Tensor dx, ConstTensor dy, ConstTensor x) const;
  // Its two halves.
  void backward_weight(ConstTensor dy, ConstTensor x) const;
  void backward_input(Tensor dx, ConstTensor dy) const;

  std::vector<Parameter*> weights;
  std::vector<Parameter*> biases;

 private:
  ops::WideRows wide_;
  ops::PackedWeight packed_;
};

// Over a tensor group (Shoeybi et al. 2019). Column-parallel: each rank holds some rows of W and makes those outputs, y
// [n, N of this rank], and all of them give x its gradient. The bias is cut like the outputs.
class ColumnParallelLinear : public Linear {
 public:
  using Linear::Linear;
  // dx [n, K] is overwritten; x is forward's.
  void backward(Tensor dx, ConstTensor dy, ConstTensor x, Context& context) const;
};

// Row-parallel: each rank holds some columns of W, so y is a part of a sum until it leaves the group; then comes the
// bias, whole on every rank.
class RowParallelLinear {
 public:
  RowParallelLinear(ParameterSet& parameters, const LinearSpec& spec);

  void refresh() { product_.refresh(); }
  int64_t packed_bytes() const { return product_.packed_bytes(); }
  // y [n, N] from x [n, K of this rank]; backward overwrites dx.
  void forward(Tensor y, ConstTensor x, Context& context) const;
  void backward(Tensor dx, ConstTensor dy, ConstTensor x) const;
  // Its two halves, in this order, for callers that have x only after dx.
  void backward_input(Tensor dx, ConstTensor dy) const;
  void backward_weight(ConstTensor dy, ConstTensor x) const;

  Parameter* weight;
  Parameter* bias = nullptr;

 private:
  Linear product_;
};

}  // namespace keel::nn
