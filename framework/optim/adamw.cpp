#include "framework/optim/adamw.h"

namespace keel::optim {

Adamw::Adamw(nn::ParameterSet& parameters, std::vector<Span> spans, const AdamwOptions& options)
    : parameters_(parameters), spans_(std::move(spans)), options_(options) {
  for (const Span& span : spans_) {
    offsets_.push_back(moment2_begin_);
    moment2_begin_ += span.size();
  }
  moments_ = Buffer(parameters.arenas().front().master.device(), 2 * moment2_begin_ * 4);
}

Tensor Adamw::moment(size_t span, int64_t base) const {
  return moments_.tensor((base + offsets_[span]) * 4, {spans_[span].size()}, DType::f32);
}

double Adamw::step(const Update& update) {
  double change = 0;
  for (size_t i = 0; i < spans_.size(); ++i) {
    const Span& span = spans_[i];
    nn::ParameterArena& arena = parameters_.arenas()[span.arena];
    auto part = [&](Tensor whole) { return whole.slice(0, span.begin, span.end); };
    ops::AdamwState state{part(arena.master), moment1(i), moment2(i), {}};
    if (arena.compute_dtype != DType::f32) state.compute = part(arena.compute);
    const double squares = ops::adamw(state, part(arena.gradient),
                                      {.lr = float(update.lr),
                                       .beta1 = options_.beta1,
                                       .beta2 = options_.beta2,
                                       .eps = float(options_.eps),
                                       .decay = arena.decayed ? float(update.decay) : 0.f,
                                       .gradient_scale = float(update.gradient_scale),
                                       .updates = update.updates});
    if (span.counted) change += squares;
  }
  return change;
}

}  // namespace keel::optim
