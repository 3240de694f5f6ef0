// The factor of embeddings is a number of the type of the weights.
#include "framework/nn/embedding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "framework/parallel/tensor_parallel.h"
#include "tests/support/compare.h"

namespace keel::nn {
namespace {

using namespace keel::testing;

class EmbeddingFactor : public ::testing::TestWithParam<DType> {};

// Gemma's sqrt(2560) = 50.596 is 50.5 in bf16, forward and backward.
TEST_P(EmbeddingFactor, IsOfTheWeightsType) {
  const float factor = GetParam() == DType::bf16 ? 50.5f : std::sqrt(2560.f);
  const auto alone = comm::make_self_communicator();
  parallel::TensorParallel group(*alone);
  ParameterSet parameters;
  Embedding embedding(parameters, {.vocabulary = 4, .hidden = 8, .factor = std::sqrt(2560.0)});
  parameters.allocate({.activation = GetParam()});
  for (int64_t i = 0; i < 32; ++i) embedding.table->master.as<float>()[i] = float(i) / 8;  // exact in bf16
  parameters.round_to_compute();

  OwnedTensor x({2, 8}, DType::f32), dx({2, 8}, DType::f32);
  set_values(dx, Values(16, 1));
  const int32_t ids[] = {1, 3}, places[] = {0, 1};
  const ConstTensor tokens(ids, {2}, DType::i32), positions(places, {2}, DType::i32);
  Arena saved(Device{}, 1 << 12), scratch(Device{}, 1 << 12);
  Context context{saved, scratch, GetParam(), &group};
  embedding.forward(x, tokens, positions, context);
  embedding.backward(dx, tokens, positions);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(x.tensor.as<float>()[i], float(8 + i) / 8 * factor);
    EXPECT_EQ(embedding.table->gradient.as<float>()[8 + i], factor);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, EmbeddingFactor, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace keel::nn
