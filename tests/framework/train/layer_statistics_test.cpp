// Norms and ranges of each layer's matrices, against sums in double over the logical weights: whole, cut, replicated,
// over both axes of the mesh. On 4 ranks the mesh is tensor 2 x data 2.
#include "framework/train/layer_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "framework/comm/mpi.h"

namespace keel::train {
namespace {

constexpr int64_t kLayers = 2;

float value_of(int64_t parameter, int64_t index) {
  if (index == 7 && parameter == 1) return INFINITY;
  if (index % 10 == 3) return 0;
  return std::sin(float(index + 100 * parameter));
}

class LayersOfMatrices : public ::testing::TestWithParam<DType> {};

TEST_P(LayersOfMatrices, AreThoseOfTheLogicalWeights) {
  const auto world = comm::make_mpi_communicator(MPI_COMM_WORLD);
  parallel::Mesh mesh(*world, world->size() > 1 ? 2 : 1);
  nn::ParameterSet parameters;
  using Kind = nn::Placement;
  const Kind placements[] = {Kind::sharded(0), Kind::sharded(1), Kind::sharded(0, mesh.tensor().size()), Kind::whole(),
                             Kind::sharded(0)};
  const int64_t layers[] = {0, 1, 1, 0, -1};
  for (size_t i = 0; i < 5; ++i) {
    nn::Parameter& parameter = parameters.declare({.name = fmt::format("w{}", i),
                                                   .shape = {6, 8},
                                                   .init = {},
                                                   .decayed = i % 2 == 0,
                                                   .product = true,
                                                   .layer = layers[i]});
    parameter.placement = placements[i];
  }
  parameters.allocate({.activation = GetParam(),
                       .tensor = mesh.tensor_position(),
                       .data_ranks = mesh.data().size(),
                       .bucket_elements = 32});
  double squares[kLayers] = {}, saturated[kLayers] = {}, flushed[kLayers] = {}, elements[kLayers] = {};
  for (int64_t number = 0; number < 5; ++number) {
    nn::Parameter& parameter = parameters.all()[size_t(number)];
    nn::for_each_run(parameter, [&](int64_t logical, int64_t local, int64_t count) {
      for (int64_t i = 0; i < count; ++i) parameter.master.as<float>()[local + i] = value_of(number, logical + i);
    });
    for (int64_t i = 0; layers[number] >= 0 && i < 48; ++i) {
      const double value = value_of(number, i);
      squares[layers[number]] += value * value;
      saturated[layers[number]] += std::isinf(value);
      flushed[layers[number]] += value == 0;
      elements[layers[number]] += 1;
    }
  }
  parameters.round_to_compute();
  LayerStatistics statistics(parameters, mesh, kLayers);
  for (int time = 0; time < 2; ++time) {
    const LayerStatistics::Layers& found = statistics.collect();
    EXPECT_NEAR(found.weight_norms[0], std::sqrt(squares[0]), 1e-6 * std::sqrt(squares[0]));
    EXPECT_TRUE(std::isinf(found.weight_norms[1]));
    ASSERT_EQ(found.saturated.size(), GetParam() == DType::bf16 ? size_t(kLayers) : 0u);
    for (size_t layer = 0; layer < found.saturated.size(); ++layer) {
      EXPECT_FLOAT_EQ(found.saturated[layer], float(saturated[layer] / elements[layer]));
      EXPECT_FLOAT_EQ(found.flushed[layer], float(flushed[layer] / elements[layer]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LayersOfMatrices, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace keel::train
