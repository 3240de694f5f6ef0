// Statistics of heads, from the ranks that own them to one array of the whole model on every rank.
#pragma once

#include <vector>

#include "framework/parallel/mesh.h"
#include "framework/tensor/buffer.h"

namespace keel::train {

class HeadStatistics {
 public:
  // `mesh` outlives this; `most_elements` of one rank, on `device`.
  HeadStatistics(parallel::Mesh& mesh, int64_t most_elements, Device device = {});

  // own [L, heads of this rank], reduced over the data axis and gathered over the tensor axis: gathered [tensor ranks,
  // L, heads of a rank]. Elements of at most 8 bytes. Collective.
  void gather(Tensor gathered, ConstTensor own, comm::Reduction reduction) const;
  // The same on the host, in the order of the model: whole [L, heads]. Where several ranks hold the same KV head, the
  // first one speaks for it. T: float, double or int64_t, the tensors' type.
  template <class T>
  static void arrange(std::vector<T>& whole, ConstTensor gathered, int64_t heads);
  // Both, on the CPU.
  template <class T>
  void collect(std::vector<T>& whole, ConstTensor own, int64_t heads, comm::Reduction reduction) const;

 private:
  parallel::Mesh& mesh_;
  Buffer reduced_, gathered_;
};

}  // namespace keel::train
