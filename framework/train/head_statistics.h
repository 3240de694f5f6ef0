// Statistics of heads, from the ranks that own them to one array of the whole model on every rank.
#pragma once

#include <vector>

#include "framework/parallel/mesh.h"

namespace keel::train {

// own [L, heads of this rank] fp32, reduced over the data axis and gathered over the tensor axis: [L, all heads].
std::vector<float> over_ranks(parallel::Mesh& mesh, ConstTensor own, comm::Reduction reduction);

}  // namespace keel::train
