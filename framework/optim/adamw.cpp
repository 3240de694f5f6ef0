#include "framework/optim/adamw.h"

namespace keel::optim {

Adamw::Adamw(nn::ParameterSet& parameters, std::vector<nn::ArenaRange> spans, const ops::AdamwOptions& options)
    : parameters_(parameters), spans_(std::move(spans)), options_(options) {
  for (const nn::ArenaRange& span : spans_) {
    offsets_.push_back(moment2_begin_);
    moment2_begin_ += span.size();
  }
  const Device device = parameters.device();
  moments_ = Buffer(device, 2 * moment2_begin_ * 4);
  uncounted_ = OwnedTensor({1}, DType::f64, device);
}

Tensor Adamw::moment(size_t span, int64_t base) const {
  return moments_.tensor((base + offsets_[span]) * 4, {spans_[span].size()}, DType::f32);
}

void Adamw::step(Tensor change, ConstTensor rates, ConstTensor gate) {
  for (size_t i = 0; i < spans_.size(); ++i) {
    const nn::ArenaRange& span = spans_[i];
    nn::ParameterArena& arena = parameters_.arenas()[span.arena];
    auto part = [&](Tensor whole) { return whole.slice(0, span.begin, span.end); };
    ops::AdamwState state{part(arena.master), moment1(i), moment2(i), {}};
    if (arena.compute_dtype != DType::f32 && !parameters_.rounds_stochastically()) state.compute = part(arena.compute);
    const Tensor sum = span.counted ? change.slice(0, span.layer + 1, span.layer + 2) : uncounted_.tensor;
    ops::adamw(sum, state, part(arena.gradient), {rates, gate, arena.decayed}, options_);
  }
}

}  // namespace keel::optim
