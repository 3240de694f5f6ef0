// Statistics of heads, from the ranks that own them to one array of the whole model on every rank.
#pragma once

#include <vector>

#include "framework/parallel/mesh.h"

namespace keel::train {

class HeadStatistics {
 public:
  // `mesh` outlives this.
  explicit HeadStatistics(parallel::Mesh& mesh) : mesh_(mesh) {}

  // own [L, heads of this rank] fp32, reduced over the data axis and gathered over the tensor axis: whole [L, heads].
  // Where several ranks hold the same KV head, the first one speaks for it. Collective.
  void gather(std::vector<float>& whole, ConstTensor own, int64_t heads, comm::Reduction reduction);

 private:
  parallel::Mesh& mesh_;
  std::vector<float> reduced_, gathered_;
};

}  // namespace keel::train
