#include "framework/nn/classifier.h"

#include <algorithm>

#include "framework/ops/elementwise.h"
#include "framework/tensor/copy.h"

namespace keel::nn {
namespace {

// Tokens whose logits exist at one time. Enough rows for an efficient product; fp32 logits of a chunk stay some MiB.
constexpr int64_t kChunk = 512;

ops::CrossEntropyStatistics take_statistics(int64_t rows, Arena& arena) {
  auto column = [&] { return arena.take({rows}, DType::f32); };
  return {column(), column(), column(), column()};
}

}  // namespace

ops::CrossEntropyOptions Classifier::options(const LossOptions& loss) const {
  return {.vocabulary = spec.vocabulary,
          .first_column = table->shard_offset(),
          .softcap = float(spec.softcap),
          .label_smoothing = float(loss.label_smoothing),
          .z_loss = float(loss.z_loss)};
}

void Classifier::combine(const ops::CrossEntropyStatistics& statistics, Context& context) const {
  auto scope = context.scratch.scope();
  Tensor maximum = context.scratch.take(statistics.maximum.shape(), DType::f32);
  ops::convert(maximum, statistics.maximum);
  context.group->maximum(maximum);
  ops::cross_entropy_rescale(statistics, maximum);
  context.group->sum(statistics.sum_exp);
  context.group->sum(statistics.target_logit);
  context.group->sum(statistics.logit_sum);
}

void Classifier::forward_backward(Tensor sums, Tensor dx, const Inputs& in, const LossOptions& loss,
                                  Context& context) const {
  const ops::CrossEntropyOptions options = this->options(loss);
  const int64_t columns = table->local[0], n = in.x.size(0);
  context.group->enter_forward(in.x);
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t end = std::min(n, begin + kChunk);
    auto scope = context.scratch.scope();
    Tensor logits = context.scratch.take_rows(end - begin, columns, DType::f32);
    ops::CrossEntropyStatistics statistics = take_statistics(end - begin, context.scratch);
    ConstTensor rows = in.x.slice(0, begin, end), wanted = in.targets.slice(0, begin, end);
    ops::linear_forward(logits, rows, packed_);
    ops::cross_entropy_statistics(statistics, logits, wanted, options);
    combine(statistics, context);
    ops::cross_entropy_loss(sums, statistics, wanted, options);
    if (!dx.defined()) continue;
    ops::cross_entropy_gradient(logits, statistics, wanted, in.factor, options);
    Tensor d_logits = logits;
    if (context.activation != DType::f32) {
      d_logits = context.scratch.take_rows(end - begin, columns, context.activation);
      ops::convert(d_logits, logits);
    }
    ops::linear_backward_input(dx.slice(0, begin, end), d_logits, packed_);
    ops::linear_backward_weight(table->gradient, d_logits, rows);
  }
  if (dx.defined()) context.group->enter_backward(dx);
}

void Classifier::evaluate(Tensor sums, Tensor x, ConstTensor targets, Context& context) const {
  forward_backward(sums, {}, {x, targets, {}}, {}, context);
}

void Classifier::logits(Tensor logits, Tensor x, Context& context) const {
  ops::linear_forward(logits, x, packed_);
  auto scope = context.scratch.scope();
  ops::CrossEntropyStatistics statistics = take_statistics(x.size(0), context.scratch);
  Tensor none = context.scratch.take({x.size(0)}, DType::i32);
  zero(none);
  ops::cross_entropy_statistics(statistics, logits, none, options({}));
}

}  // namespace keel::nn
