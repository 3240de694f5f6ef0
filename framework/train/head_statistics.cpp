#include "framework/train/head_statistics.h"

#include <algorithm>

namespace keel::train {

void HeadStatistics::gather(std::vector<float>& whole, ConstTensor own, int64_t heads, comm::Reduction reduction) {
  const int64_t layers = own.size(0), own_heads = own.size(1), ranks = mesh_.tensor().size();
  const int64_t replicas = ranks * own_heads / heads;
  require(ranks * own_heads == replicas * heads, "{} ranks of {} heads do not make {}", ranks, own_heads, heads);
  reduced_.resize(size_t(own.elements()));
  gathered_.resize(size_t(ranks * own.elements()));
  whole.resize(size_t(layers * heads));
  const Tensor reduced(reduced_.data(), {own.elements()}, DType::f32);
  mesh_.data().all_reduce(reduced, own.reshaped({own.elements()}), reduction);
  mesh_.tensor().all_gather(Tensor(gathered_.data(), {ranks * own.elements()}, DType::f32), reduced);
  for (int64_t rank = 0; rank < ranks; rank += replicas)
    for (int64_t layer = 0; layer < layers; ++layer)
      std::copy_n(&gathered_[size_t((rank * layers + layer) * own_heads)], own_heads,
                  &whole[size_t(layer * heads + rank / replicas * own_heads)]);
}

}  // namespace keel::train
