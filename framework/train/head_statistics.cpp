#include "framework/train/head_statistics.h"

#include <algorithm>

namespace keel::train {

HeadStatistics::HeadStatistics(parallel::Mesh& mesh, int64_t most_elements, Device device)
    : mesh_(mesh),
      reduced_({most_elements}, DType::f32, device),
      gathered_({mesh.tensor().size() * most_elements}, DType::f32, device) {}

void HeadStatistics::collect(std::vector<float>& whole, ConstTensor own, int64_t heads,
                             comm::Reduction reduction) const {
  const int64_t ranks = mesh_.tensor().size();
  const Tensor gathered =
      gathered_.tensor.slice(0, 0, ranks * own.elements()).reshaped({ranks, own.size(0), own.size(1)});
  gather(gathered, own, reduction);
  arrange(whole, gathered, heads);
}

void HeadStatistics::gather(Tensor gathered, ConstTensor own, comm::Reduction reduction) const {
  const Tensor reduced = reduced_.tensor.slice(0, 0, own.elements());
  mesh_.data().all_reduce(reduced, own.reshaped({own.elements()}), reduction);
  mesh_.tensor().all_gather(gathered, reduced);
}

void HeadStatistics::arrange(std::vector<float>& whole, ConstTensor gathered, int64_t heads) {
  const int64_t ranks = gathered.size(0), layers = gathered.size(1), own_heads = gathered.size(2);
  const int64_t replicas = ranks * own_heads / heads;
  require(ranks * own_heads == replicas * heads, "{} ranks of {} heads do not make {}", ranks, own_heads, heads);
  whole.resize(size_t(layers * heads));
  for (int64_t rank = 0; rank < ranks; rank += replicas)
    for (int64_t layer = 0; layer < layers; ++layer)
      std::copy_n(gathered.as<float>() + (rank * layers + layer) * own_heads, own_heads,
                  &whole[size_t(layer * heads + rank / replicas * own_heads)]);
}

}  // namespace keel::train
