// The default attention layer (rms, per-head gains, per-head scale, rotation off) against the reference of QKNORM.md
// section 7, written independently in NumPy with a hand-made backward: with and without the causal mask, and with its
// heads split over the ranks that the test runs on.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/comm/mpi.h"
#include "framework/nn/attention.h"
#include "framework/ops/elementwise.h"
#include "framework/parallel/tensor_parallel.h"
#include "tests/support/golden.h"

namespace keel::nn {
namespace {

using nlohmann::json;

std::vector<double> flat(const json& value) {
  if (!value.is_array()) return {value.get<double>()};
  std::vector<double> values;
  for (const json& part : value)
    for (double x : flat(part)) values.push_back(x);
  return values;
}

class HenryBlock : public ::testing::TestWithParam<bool> {
 protected:
  HenryBlock()
      : golden(json::parse(std::ifstream(testing::golden_file("henry_block.json")))),
        world(comm::make_mpi_communicator(MPI_COMM_WORLD)),
        group(*world) {}

  AttentionSpec spec() const {
    const int64_t H = golden["heads"], d = golden["head_dim"];
    QkNormSpec norm{.name = "a", .pass = {.heads = H, .kv_heads = H, .head_dim = d, .eps = golden["eps"]}};
    return {.name = "a",
            .hidden = golden["hidden"],
            .heads = H,
            .kv_heads = H,
            .head_dim = d,
            .qk_norm = norm,
            .causal = GetParam()};
  }

  // Whole heads to each rank, as models/decoder/parallelize.cpp splits them.
  void split(Attention& attention) const {
    for (Parameter* weight : attention.qkv.weights) weight->placement = Placement::sharded(0);
    for (Parameter* weight : {attention.qk_norm.q_weight, attention.qk_norm.k_weight, attention.logit_scale})
      weight->placement = Placement::sharded(0);
    attention.output.weight->placement = Placement::sharded(1);
    const int64_t own = attention.spec.heads / world->size();
    attention.qk_norm.set_heads(own, own, 1);
  }

  static Tensor filled(Arena& arena, const Shape& shape, const json& values) {
    Tensor tensor = arena.take(shape, DType::f32);
    const std::vector<double> flattened = flat(values);
    for (int64_t i = 0; i < shape.elements(); ++i) tensor.as<float>()[i] = float(flattened[size_t(i)]);
    return tensor;
  }

  void expect_near(const float* values, const std::vector<double>& expected, const std::string& what) const {
    double difference = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(double(values[i]) - expected[i], 2);
      size += expected[i] * expected[i];
    }
    EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(size)) << what;
  }

  const json golden;
  std::unique_ptr<comm::Communicator> world;
  parallel::TensorParallel group;
};

TEST_P(HenryBlock, ForwardAndBackward) {
  ParameterSet parameters;
  Attention attention(parameters, spec());
  split(attention);
  parameters.allocate({.tensor = {world->rank(), world->size()}});
  const std::map<std::string, Parameter*> by_name = {{"w_q", attention.qkv.weights[0]},
                                                     {"w_k", attention.qkv.weights[1]},
                                                     {"w_v", attention.qkv.weights[2]},
                                                     {"w_o", attention.output.weight},
                                                     {"gamma_q", attention.qk_norm.q_weight},
                                                     {"gamma_k", attention.qk_norm.k_weight},
                                                     {"g", attention.logit_scale}};
  for (const auto& [name, parameter] : by_name) {
    const std::vector<double> values = flat(golden["inputs"][name]);
    for_each_run(*parameter, [&](int64_t logical, int64_t local, int64_t count) {
      for (int64_t i = 0; i < count; ++i) parameter->master.as<float>()[local + i] = float(values[size_t(logical + i)]);
    });
  }
  attention.refresh();

  const BatchShape batch{golden["batch"], golden["tokens"]};
  const Shape shape = {batch.tokens(), golden["hidden"].get<int64_t>()};
  Arena saved_arena(Device{}, 1 << 20), scratch(Device{}, 1 << 20), data(Device{}, 1 << 20);
  Context context{saved_arena, scratch, DType::f32, &group};
  const Tensor x = filled(data, shape, golden["inputs"]["x"]), dy = filled(data, shape, golden["dy"]);
  const Tensor y = data.take(shape, DType::f32), dx = data.take(shape, DType::f32);
  const Tensor largest = data.take({attention.heads()}, DType::f32), rows = data.take({batch.tokens()}, DType::i32);
  ops::fill(largest, 0);
  Attention::Saved saved;
  const Positions positions{rows, {}, {}};
  attention.forward(y, x, {positions, batch, {.largest_logit = largest}}, saved, context);
  attention.backward(dx, dy, {positions, batch}, saved, context);

  const json& expected = golden[GetParam() ? "causal" : "without_mask"];
  expect_near(y.as<float>(), flat(expected["y"]), "y");
  expect_near(dx.as<float>(), flat(expected["gradients"]["x"]), "dx");
  const int64_t H = attention.heads();
  for (int64_t h = 0; h < H; ++h) {
    const double wanted = expected["largest_logit"][size_t(world->rank() * H + h)];
    EXPECT_NEAR(largest.as<float>()[h], wanted, 1e-5 * wanted);
  }
  for (const auto& [name, parameter] : by_name) {
    const std::vector<double> values = flat(expected["gradients"][name]);
    std::vector<double> own(size_t(parameter->local.elements()));
    for_each_run(*parameter, [&](int64_t logical, int64_t local, int64_t count) {
      std::copy_n(values.begin() + logical, count, own.begin() + local);
    });
    expect_near(parameter->gradient.as<float>(), own, name);
  }
}

INSTANTIATE_TEST_SUITE_P(Mask, HenryBlock, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Causal" : "None"; });

}  // namespace
}  // namespace keel::nn
