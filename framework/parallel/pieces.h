// What a data rank holds once gradients are reduced: of every bucket of every arena one equal share, its piece.
#pragma once

#include <algorithm>
#include <span>

#include "framework/nn/parameter.h"

namespace keel::parallel {

// In the order of the arenas and of their buckets.
std::vector<nn::ArenaRange> pieces_of(nn::ParameterSet& parameters, nn::AxisPosition data);

// Calls f(begin, end) for every range of the parameter's local elements that lies in one of the pieces.
template <class F>
void for_each_part(std::span<const nn::ArenaRange> pieces, const nn::Parameter& parameter, const F& f) {
  for (const nn::ArenaRange& piece : pieces) {
    if (piece.arena != parameter.arena) continue;
    const int64_t begin = std::max<int64_t>(piece.begin - parameter.offset_elements, 0);
    const int64_t end = std::min(piece.end - parameter.offset_elements, parameter.local.elements());
    if (begin < end) f(begin, end);
  }
}

// The same of one of its tensors.
inline Tensor part_of(Tensor tensor, int64_t begin, int64_t end) {
  return tensor.flat().slice(0, begin, end);
}

}  // namespace keel::parallel
