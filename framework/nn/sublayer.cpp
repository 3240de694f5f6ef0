#include "framework/nn/sublayer.h"

#include "framework/ops/elementwise.h"

namespace keel::nn {

Sublayer::Sublayer(ParameterSet& parameters, const std::string& name, int64_t width, NormPlacement placement,
                   const NormSpec& norm) {
  if (placement != NormPlacement::post) before_.emplace(parameters, name + "_norm", width, norm);
  if (placement != NormPlacement::pre) after_.emplace(parameters, name + "_post_norm", width, norm);
}

Tensor Sublayer::open(ResidualStream& stream, Saved& saved, Context& context) const {
  const Shape shape = stream.residual.shape();
  saved.residual = stream.pending ? context.saved.take(shape, stream.residual.dtype()) : stream.residual;
  const bool same = !before_ && stream.residual.dtype() == context.activation;
  saved.x = same ? saved.residual : context.saved.take(shape, context.activation);
  if (before_ && stream.pending) {
    before_->forward_added(saved.x, {saved.residual, stream.residual, stream.branch}, saved.before, context);
  } else {
    if (stream.pending) ops::add(saved.residual, stream.residual, stream.branch);
    if (before_) before_->forward(saved.x, saved.residual, saved.before, context);
    if (!before_ && !same) ops::convert(saved.x, saved.residual);
  }
  stream.residual = saved.residual;
  return saved.x;
}

Tensor Sublayer::output(const ResidualStream& stream, Saved& saved, Context& context) const {
  if (!after_) return stream.branch;
  return saved.y = context.saved.take(stream.branch.shape(), context.activation);
}

void Sublayer::close(ResidualStream& stream, Saved& saved, Context& context) const {
  if (after_) after_->forward(stream.branch, saved.y, saved.after, context);
  stream.pending = true;
}

Tensor Sublayer::close_backward(Tensor buffer, Tensor d, const Saved& saved) const {
  if (!after_ && d.dtype() == buffer.dtype()) return d;
  if (after_)
    after_->backward(buffer, d, saved.y, saved.after, false);
  else
    ops::convert(buffer, d);
  return buffer;
}

void Sublayer::open_backward(Tensor d, ConstTensor dx, const Saved& saved) const {
  if (before_)
    before_->backward(d, dx, saved.residual, saved.before, true);
  else
    ops::add(d, d, dx);
}

}  // namespace keel::nn
