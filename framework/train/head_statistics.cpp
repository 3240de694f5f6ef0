#include "framework/train/head_statistics.h"

#include <algorithm>

namespace keel::train {

std::vector<float> over_ranks(parallel::Mesh& mesh, ConstTensor own, comm::Reduction reduction) {
  const int64_t layers = own.size(0), heads = own.size(1), ranks = mesh.tensor().size();
  std::vector<float> reduced(size_t(layers * heads)), gathered(size_t(ranks * layers * heads)), whole(gathered.size());
  Tensor part(reduced.data(), {layers * heads}, DType::f32);
  mesh.data().all_reduce(part, own.reshaped({layers * heads}), reduction);
  mesh.tensor().all_gather(Tensor(gathered.data(), {ranks * layers * heads}, DType::f32), part);
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t layer = 0; layer < layers; ++layer)
      std::copy_n(&gathered[size_t((rank * layers + layer) * heads)], heads,
                  &whole[size_t((layer * ranks + rank) * heads)]);
  return whole;
}

}  // namespace keel::train
