// Gains and scales: their gradients are summed exactly once whatever their form, and weight decay leaves them alone.
#include <gtest/gtest.h>

#include "framework/optim/adamw.h"
#include "tests/models/decoder/decoder_case.h"
#include "tests/support/compare.h"

namespace keel::testing {
namespace {

struct Variant {
  const char* name;
  const char* text;
};

models::DecoderConfig config_of(const char* text) {
  return models::read_decoder_config(
      config::parse(fmt::format("{{kind: decoder, vocab: 40, hidden: 32, layers: 2, ffn: 32, {}}}", text), "test"));
}

bool is_gain(const std::string& name) {
  return name.ends_with("_norm.weight") || name.ends_with("logit_scale.weight");
}

Ids some_ids() {
  Ids ids{.B = 2, .T = 9};
  for (int32_t i = 0; i < 18; ++i) {
    ids.tokens.push_back(i * 7 % 40);
    ids.targets.push_back(i * 3 % 40);
    ids.positions.push_back(i % 9);
  }
  return ids;
}

class GainMode : public ::testing::TestWithParam<Variant> {};

// One step of gradient descent at rate 1: every gain, and how far it moved, as on one rank (CASES R01, R02).
TEST_P(GainMode, StepsOfDescentAreThoseOfOneRank) {
  const auto world = device_world();
  const auto self = comm::make_self_communicator();
  const models::DecoderConfig config = config_of(GetParam().text);
  DecoderCase one(*self, config, DType::f32, {2, 9}), split(*world, config, DType::f32, {2, 9});
  Ids ids = some_ids();
  for (DecoderCase* run : {&one, &split}) {
    run->set_parameters(random_value);
    run->step(ids, {});
  }
  int checked = 0;
  for (const nn::Parameter& parameter : split.decoder.parameters().all()) {
    if (!is_gain(parameter.spec.name)) continue;
    const nn::Parameter& whole = one.decoder.parameters().at(parameter.spec.name);
    const Values gradient = to_doubles(parameter.gradient), of_one = to_doubles(whole.gradient);
    Values region(gradient.size());
    nn::for_each_run(parameter, [&](int64_t logical, int64_t local, int64_t count) {
      std::copy_n(of_one.begin() + logical, count, region.begin() + local);
    });
    EXPECT_NEAR(norm_of(gradient) / norm_of(region), 1, 5e-4) << parameter.spec.name << ": the ratio of the steps";
    EXPECT_TRUE(near_by_norm(gradient, region, 0, 1e-5 * norm_of(of_one) + 1e-9 * one.gradient_norm()))
        << parameter.spec.name;
    ++checked;
  }
  EXPECT_GE(checked, 4 + 4);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, GainMode,
    ::testing::Values(Variant{"Shared", "attention: {heads: 4, kv_heads: 2, qk_norm: {weight: shared}}"},
                      Variant{"PerHead", "attention: {heads: 4, kv_heads: 2}"},
                      Variant{"FullWidth", "attention: {heads: 4, kv_heads: 2, qk_norm: {scope: full}}"},
                      Variant{"SharedOneKvHead",
                              "attention: {heads: 4, kv_heads: 1, qk_norm: {weight: shared}, logit_scale: {kind: "
                              "per_layer}}"},
                      Variant{"FullWidthOneKvHead", "attention: {heads: 4, kv_heads: 1, qk_norm: {scope: full}}"}),
    [](const auto& info) { return info.param.name; });

// Kernels load 16 bytes at a time from gains that begin so, whatever lies before them: 28, 14 or 7 logit scales.
TEST(Gains, BeginAtMultiplesOf16Bytes) {
  const auto world = device_world();
  const auto config = models::read_decoder_config(config::parse(
      "{kind: decoder, vocab: 40, hidden: 224, layers: 2, ffn: 32, attention: {heads: 28, kv_heads: 4}}", "test"));
  for (DType activation : {DType::f32, DType::bf16}) {
    DecoderCase run(*world, config, activation, {2, 9});
    for (const nn::Parameter& parameter : run.decoder.parameters().all())
      for (const Tensor* part : {&parameter.compute, &parameter.gradient, &parameter.master})
        if (!parameter.spec.beside) {
          EXPECT_EQ(reinterpret_cast<uintptr_t>(part->data()) % 16, 0) << parameter.spec.name;
        }
  }
}

// CASES R08, R09: all weights 1, no gradient, rate 0.1, decay 0.1.
TEST(WeightDecay, LeavesGainsScalesAndBiasesAlone) {
  const auto world = device_world();
  for (bool zero_centered : {false, true})
    for (bool decayed_gains : {false, true}) {
      const std::string text = fmt::format(
          "attention: {{heads: 4, kv_heads: 4, bias: {{qkv: true, output: true}}, qk_norm: {{zero_centered: {}, "
          "weight_decay: {}}}}}, mlp: {{kind: gelu, bias: true}}, norm: {{kind: layer, zero_centered: {}}}",
          zero_centered, decayed_gains, zero_centered);
      DecoderCase run(*world, config_of(text.c_str()), DType::f32, {2, 9});
      run.set_parameters([](const std::string&, int64_t) { return 1; });
      run.decoder.parameters().zero_gradients();
      nn::ParameterSet& parameters = run.decoder.parameters();
      parallel::DataParallel reducer(parameters, run.mesh(), false);
      optim::Adamw optimizer(parameters, reducer.update_spans(), {});
      const ops::AdamwRates rates = optimizer.rates({.lr = 0.1, .decay = 0.1 * 0.1, .updates = 1});
      optimizer.step(DeviceTensor({1 + 2}, DType::f64), device_tensor(std::vector<float>(rates.begin(), rates.end())),
                     device_tensor(std::vector<float>{1, 1}));
      for (const nn::Parameter& parameter : parameters.all()) {
        const std::string& name = parameter.spec.name;
        const bool of_qk = name.ends_with(".q_norm.weight") || name.ends_with(".k_norm.weight");
        const bool kept = (is_gain(name) && !(of_qk && decayed_gains)) || name.ends_with(".bias");
        for (double value : to_doubles(parameter.master)) ASSERT_EQ(float(value), kept ? 1.f : 0.99f) << name;
      }
    }
}

}  // namespace
}  // namespace keel::testing
