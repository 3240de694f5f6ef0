#include "framework/train/layer_statistics.h"

#include <cmath>

#include "framework/ops/elementwise.h"
#include "framework/tensor/copy.h"

namespace keel::train {

LayerStatistics::LayerStatistics(nn::ParameterSet& parameters, parallel::Mesh& mesh, int64_t layers)
    : mesh_(mesh),
      elements_(size_t(layers)),
      sums_({layers, 3}, DType::f64, parameters.device()),
      host_sums_({layers, 3}, DType::f64) {
  const std::vector<nn::ArenaRange> pieces = parallel::pieces_of(parameters, mesh.data_position());
  for (const nn::Parameter& parameter : parameters.all()) {
    const int64_t layer = parameter.spec.layer;
    if (layer < 0) continue;
    elements_[size_t(layer)] += double(parameter.spec.shape.elements());
    rounded_ |= parameter.compute.dtype() == DType::bf16;
    if (!parameter.first_replica()) continue;
    parallel::for_each_part(pieces, parameter, [&](int64_t begin, int64_t end) {
      parts_.push_back(
          {layer, parallel::part_of(parameter.master, begin, end), parallel::part_of(parameter.compute, begin, end)});
    });
  }
}

const LayerStatistics::Layers& LayerStatistics::collect() {
  zero(sums_);
  for (const Part& part : parts_) {
    const Tensor sums = sums_.tensor.row(part.layer);
    ops::add_sum_of_squares(sums.slice(0, 0, 1), part.master);
    if (rounded_) ops::add_out_of_range(sums.slice(0, 1, 3), part.compute);
  }
  mesh_.world().all_reduce(sums_.tensor);
  copy(host_sums_, sums_);
  layers_ = {};
  for (size_t layer = 0; layer < elements_.size(); ++layer) {
    const double* sums = host_sums_.tensor.as<double>() + 3 * layer;
    layers_.weight_norms.push_back(std::sqrt(sums[0]));
    if (!rounded_) continue;
    layers_.saturated.push_back(float(sums[1] / elements_[layer]));
    layers_.flushed.push_back(float(sums[2] / elements_[layer]));
  }
  return layers_;
}

}  // namespace keel::train
