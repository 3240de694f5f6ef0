#include "framework/nn/classifier.h"

#include <algorithm>

#include "framework/ops/elementwise.h"
#include "framework/tensor/copy.h"

namespace keel::nn {
namespace {

// Tokens whose logits exist at one time. On a CPU as few as make an efficient product, so that fp32 logits stay some
// MiB. On a GPU more: each chunk reads and writes the whole gradient of the table, which takes as long as the chunk's
// product at about 700 tokens.
int64_t chunk_of(DeviceKind device, int64_t columns) {
  constexpr int64_t kTokens = 512, kMostBytes = int64_t(1) << 30;
  if (device != DeviceKind::cuda) return kTokens;
  return std::clamp(kMostBytes / (4 * columns) / kTokens * kTokens, kTokens, Classifier::kMostChunkTokens);
}

// Statistics of n tokens; those that the ranks add lie side by side in `added` [3, n].
struct Statistics {
  Tensor maximum, added;

  Statistics(int64_t n, Arena& arena) : maximum(arena.take({n}, DType::f32)), added(arena.take({3, n}, DType::f32)) {}
  operator ops::CrossEntropyStatistics() const { return {maximum, added.row(0), added.row(1), added.row(2)}; }
};

void combine(const Statistics& statistics, const ops::CrossEntropyOptions& options, Context& context) {
  auto scope = context.scratch.scope();
  Tensor maximum = context.scratch.take(statistics.maximum.shape(), DType::f32);
  ops::convert(maximum, statistics.maximum);
  context.group->maximum(maximum);
  ops::cross_entropy_rescale(statistics, maximum);
  // The sum of logits is for smoothing only.
  context.group->sum(statistics.added.slice(0, 0, options.label_smoothing > 0 ? 3 : 2));
}

}  // namespace

ops::CrossEntropyOptions Classifier::options(const LossOptions& loss) const {
  return {.vocabulary = spec.vocabulary,
          .first_column = table->shard_offset(),
          .softcap = float(spec.softcap),
          .label_smoothing = float(loss.label_smoothing),
          .z_loss = float(loss.z_loss)};
}

void Classifier::forward_backward(Tensor sums, Tensor dx, const Inputs& in, const LossOptions& loss,
                                  Context& context) const {
  const ops::CrossEntropyOptions options = this->options(loss);
  const int64_t columns = table->local[0], n = in.x.size(0), chunk = chunk_of(context.device, columns);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t end = std::min(n, begin + chunk);
    auto scope = context.scratch.scope();
    Tensor logits = context.scratch.take_rows(end - begin, columns, DType::f32);
    const Statistics statistics(end - begin, context.scratch);
    ConstTensor rows = in.x.slice(0, begin, end), wanted = in.targets.slice(0, begin, end);
    ops::linear_forward(logits, rows, packed_);
    ops::cross_entropy_statistics(statistics, logits, wanted, options);
    combine(statistics, options, context);
    ops::cross_entropy_loss(sums, statistics, wanted, options);
    if (!dx.defined()) continue;
    Tensor d_logits =
        context.activation == DType::f32 ? logits : context.scratch.take_rows(end - begin, columns, context.activation);
    ops::cross_entropy_gradient(d_logits, {logits, statistics, wanted, in.factor, options});
    ops::linear_backward_input(dx.slice(0, begin, end), d_logits, packed_);
    ops::linear_backward_weight(table->gradient, d_logits, rows);
  }
  if (dx.defined()) context.group->enter_backward(dx);
}

void Classifier::evaluate(Tensor sums, ConstTensor x, ConstTensor targets, Context& context) const {
  forward_backward(sums, {}, {x, targets, {}}, {}, context);
}

void Classifier::logits(Tensor logits, ConstTensor x, Context& context) const {
  ops::linear_forward(logits, x, packed_);
  auto scope = context.scratch.scope();
  const Statistics statistics(x.size(0), context.scratch);
  Tensor none = context.scratch.take({x.size(0)}, DType::i32);
  zero(none);
  ops::cross_entropy_statistics(statistics, logits, none, options({}));
}

}  // namespace keel::nn
