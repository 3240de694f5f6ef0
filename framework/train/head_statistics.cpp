#include "framework/train/head_statistics.h"

#include <algorithm>

namespace keel::train {

HeadStatistics::HeadStatistics(parallel::Mesh& mesh, int64_t most_elements, Device device)
    : mesh_(mesh), reduced_(device, 8 * most_elements), gathered_(device, 8 * mesh.tensor().size() * most_elements) {}

void HeadStatistics::gather(Tensor gathered, ConstTensor own, comm::Reduction reduction) const {
  const Tensor reduced = reduced_.tensor(0, {own.elements()}, own.dtype());
  mesh_.data().all_reduce(reduced, own.flat(), reduction);
  mesh_.tensor().all_gather(gathered, reduced);
}

template <class T>
void HeadStatistics::arrange(std::vector<T>& whole, ConstTensor gathered, int64_t heads) {
  const int64_t ranks = gathered.size(0), layers = gathered.size(1), own_heads = gathered.size(2);
  const int64_t replicas = ranks * own_heads / heads;
  require(ranks * own_heads == replicas * heads, "{} ranks of {} heads do not make {}", ranks, own_heads, heads);
  whole.resize(size_t(layers * heads));
  for (int64_t rank = 0; rank < ranks; rank += replicas)
    for (int64_t layer = 0; layer < layers; ++layer)
      std::copy_n(gathered.as<T>() + (rank * layers + layer) * own_heads, own_heads,
                  &whole[size_t(layer * heads + rank / replicas * own_heads)]);
}

template <class T>
void HeadStatistics::collect(std::vector<T>& whole, ConstTensor own, int64_t heads, comm::Reduction reduction) const {
  const Tensor gathered = gathered_.tensor(0, {mesh_.tensor().size(), own.size(0), own.size(1)}, own.dtype());
  gather(gathered, own, reduction);
  arrange(whole, gathered, heads);
}

template void HeadStatistics::arrange(std::vector<float>&, ConstTensor, int64_t);
template void HeadStatistics::collect(std::vector<float>&, ConstTensor, int64_t, comm::Reduction) const;
template void HeadStatistics::collect(std::vector<double>&, ConstTensor, int64_t, comm::Reduction) const;
template void HeadStatistics::collect(std::vector<int64_t>&, ConstTensor, int64_t, comm::Reduction) const;

}  // namespace keel::train
