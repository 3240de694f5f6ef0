// Computing activations again saves memory and changes no bit: sums, gradients, statistics.
#include <gtest/gtest.h>

#include <cstring>

#include "framework/base/rng.h"
#include "tests/models/decoder/decoder_case.h"

namespace keel::testing {
namespace {

struct Model {
  const char* name;
  const char* text;
};

// Every kind of stream: norms before, after and around; parallel; full scope; windows, soft-cap and telemetry of both.
const Model kModels[] = {
    {"Default", "vocab: 50, hidden: 32, layers: 3, ffn: 48, attention: {heads: 4, kv_heads: 4}"},
    {"Olmo2", "preset: olmo2, vocab: 50, hidden: 32, layers: 3, ffn: 48, attention: {heads: 4, kv_heads: 4}"},
    {"Gemma3",
     "preset: gemma3, vocab: 50, hidden: 32, layers: 3, ffn: 48, attention: {heads: 4, kv_heads: 4, head_dim: 8, "
     "window: "
     "5, logit_softcap: 20}, layer_pattern: [local, global]"},
    {"Vit22b", "preset: vit22b, vocab: 50, hidden: 32, layers: 3, ffn: 48, attention: {heads: 4, kv_heads: 4}"},
};

// Everything that a step leaves.
struct Left {
  ops::CrossEntropySums sums;
  std::vector<std::vector<float>> gradients, telemetry;
  int64_t activation_bytes = 0;
};

Ids random_ids(int64_t B, int64_t T) {
  Ids ids{.B = B, .T = T, .documents = true};
  for (int64_t i = 0; i < B * T; ++i) {
    const int32_t t = int32_t(i % T), start = t >= T / 3 ? int32_t(T / 3) : 0;
    ids.tokens.push_back(int32_t(uniform(1, uint64_t(i)) * 50));
    ids.targets.push_back(i % 7 == 0 ? -1 : int32_t(uniform(2, uint64_t(i)) * 50));
    ids.positions.push_back(t - start);
    ids.first_key.push_back(start);
  }
  return ids;
}

Left two_micro_steps(comm::Communicator& world, const Model& model, const char* recompute, DType activation) {
  const std::string text = fmt::format("{{kind: decoder, recompute: {}, {}}}", recompute, model.text);
  Ids ids = random_ids(2, 24);
  DecoderCase run(world, models::read_decoder_config(config::parse(text, model.name)), activation, {ids.B, ids.T});
  run.set_parameters([](const std::string& name, int64_t i) { return golden_value(name, i, 0.3, false); });
  Left left;
  run.step(ids, {.z_loss = 1e-3});
  left.sums = run.micro_step(ids, 0.01f, {});
  for (const nn::Parameter& parameter : run.decoder.parameters().all())
    left.gradients.push_back(host_values(parameter.gradient));
  const nn::ModelTelemetry& telemetry = run.decoder.telemetry();
  for (const Tensor& part : {telemetry.largest_logit, telemetry.entropy, telemetry.q_squares, telemetry.k_squares})
    left.telemetry.push_back(host_values(part));
  left.activation_bytes = run.decoder.activation_bytes();
  return left;
}

class Recompute : public ::testing::TestWithParam<std::tuple<Model, DType>> {};

TEST_P(Recompute, ChangesNoBit) {
  const auto world = device_world();
  const auto [model, activation] = GetParam();
  const Left none = two_micro_steps(*world, model, "none", activation);
  ASSERT_GT(none.sums.counted, 0);
  ASSERT_NE(none.gradients.back()[0], 0);
  for (const char* recompute : {"attention", "block"}) {
    const Left again = two_micro_steps(*world, model, recompute, activation);
    EXPECT_EQ(again.sums.loss, none.sums.loss) << recompute;
    EXPECT_EQ(again.sums.z_loss, none.sums.z_loss) << recompute;
    EXPECT_EQ(again.telemetry, none.telemetry) << recompute;
    EXPECT_EQ(again.gradients, none.gradients) << recompute;
    // Over many ranks the block's own input, which every rank keeps, outweighs its shards in a model as small as this.
    if (world->size() == 1) {
      EXPECT_LT(again.activation_bytes, none.activation_bytes) << recompute;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Recompute,
                         ::testing::Combine(::testing::ValuesIn(kModels), ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param).name, name_of(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace keel::testing
