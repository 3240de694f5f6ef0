// QK-clip (QKNORM.md section 6): after it, the same batch's largest logits in the first layer, which nothing before it
// has changed, are the old ones times the factors that the formula gives.
#include "framework/ops/qk_norm/qk_clip.h"

#include <gtest/gtest.h>

#include "tests/models/decoder/decoder_case.h"

namespace keel::testing {
namespace {

enum class Serves { one_head, all_heads };  // what the clipped weight bounds

struct Variant {
  const char* name;
  const char* attention;  // beside the head counts
  Serves serves;
  const char* changed;  // the one kind of parameter that may change
  bool products = false;
};

const Variant kVariants[] = {
    {"ScalePerHead", "", Serves::one_head, "logit_scale.weight"},
    {"ScalePerLayer", "logit_scale: {kind: per_layer}, qk_norm: {weight: none}", Serves::all_heads,
     "logit_scale.weight"},
    {"GainPerHeadBeforeScalePerLayer", "logit_scale: {kind: per_layer}", Serves::one_head, "q_norm.weight"},
    {"GainPerHead", "logit_scale: {kind: fixed}", Serves::one_head, "q_norm.weight"},
    {"GainShared", "logit_scale: {kind: fixed}, qk_norm: {weight: shared}", Serves::all_heads, "q_norm.weight"},
    {"GainZeroCentred", "logit_scale: {kind: fixed}, qk_norm: {zero_centered: true, weight_init: 1.5}",
     Serves::one_head, "q_norm.weight"},
    {"Projection", "qk_norm: {kind: none}, logit_scale: {kind: fixed}", Serves::one_head, ".q.", true},
    {"ProjectionBeforeScale", "qk_norm: {kind: none}, logit_scale: {kind: per_head}", Serves::one_head, ".q.", true},
};

class QkClip : public ::testing::TestWithParam<Variant> {
 protected:
  QkClip() : world(device_world()) {
    const std::string text = fmt::format(
        "{{kind: decoder, vocab: 40, hidden: 32, layers: 2, ffn: 32, "
        "attention: {{heads: 4, kv_heads: 2, bias: {{qkv: true}}, {}}}}}",
        GetParam().attention);
    for (int32_t i = 0; i < 32; ++i) {
      ids.tokens.push_back(i * 7 % 40);
      ids.targets.push_back(i * 3 % 40);
      ids.positions.push_back(i % 16);
      ids.first_key.push_back(0);
    }
    ids.B = 2, ids.T = 16;
    run.emplace(*world, models::read_decoder_config(config::parse(text, "test")), DType::f32,
                nn::BatchShape{ids.B, ids.T});
    const bool zero_centered = run->decoder.config().attention.qk_norm.zero_centered;
    run->set_parameters([&](const std::string& name, int64_t i) { return golden_value(name, i, 0.4, zero_centered); });
  }

  // Of the first layer, all heads of the model.
  std::vector<float> largest_of_first_layer() {
    run->step(ids, {});
    const Tensor own = run->decoder.telemetry().largest_logit;
    const DeviceTensor all({own.size(1) * world->size()}, DType::f32);
    world->all_gather(all, own.row(0));
    return host_values(all);
  }

  std::unique_ptr<comm::Communicator> world;
  Ids ids;
  std::optional<DecoderCase> run;
};

TEST_P(QkClip, ScalesTheLogitsThatPassedTau) {
  models::Decoder& decoder = run->decoder;
  const std::vector<float> before = largest_of_first_layer();
  // At least one head above and one below.
  const auto [least, most] = std::minmax_element(before.begin(), before.end());
  const float tau = (*least + *most) / 2;
  ASSERT_GT(*most, 1.005f * tau);

  std::map<std::string, std::vector<float>> weights;
  for (const nn::Parameter& parameter : decoder.parameters().all())
    weights[parameter.spec.name] = host_values(parameter.master);
  const Tensor largest = decoder.telemetry().largest_logit;
  const DeviceTensor factors(largest.shape(), DType::f32), gate = device_tensor(std::vector<float>{1, 1});
  ops::qk_clip_factors(factors, largest, gate, tau);
  EXPECT_EQ(decoder.clip_weights(factors), GetParam().products);
  decoder.parameters().round_to_compute();
  decoder.refresh();

  const std::vector<float> after = largest_of_first_layer();
  const float smallest = tau / *most;
  for (size_t h = 0; h < before.size(); ++h) {
    const float factor = GetParam().serves == Serves::one_head ? std::min(1.f, tau / before[h]) : smallest;
    EXPECT_NEAR(after[h], factor * before[h], 1e-5 * before[h]) << "head " << h;
  }
  for (const nn::Parameter& parameter : decoder.parameters().all()) {
    const std::vector<float>& old = weights[parameter.spec.name];
    const bool same = host_values(parameter.master) == old;
    if (parameter.spec.name.find(GetParam().changed) == std::string::npos) {
      EXPECT_TRUE(same) << parameter.spec.name << " changed";
    }
  }
}

TEST_P(QkClip, LeavesEveryBitWhereNothingPassedTau) {
  const std::vector<float> before = largest_of_first_layer();
  // Far above, and an update that was not made.
  const Tensor largest = run->decoder.telemetry().largest_logit;
  const DeviceTensor factors(largest.shape(), DType::f32);
  ops::qk_clip_factors(factors, largest, device_tensor(std::vector<float>{1, 1}), 1e6);
  EXPECT_EQ(host_values(factors), std::vector<float>(size_t(largest.elements()), 1.f));
  ops::qk_clip_factors(factors, largest, device_tensor(std::vector<float>{1, 0}), 1e-3);
  run->decoder.clip_weights(factors);
  run->decoder.refresh();
  const std::vector<float> after = largest_of_first_layer();
  EXPECT_EQ(after, before);
}

INSTANTIATE_TEST_SUITE_P(Variants, QkClip, ::testing::ValuesIn(kVariants),
                         [](const auto& info) { return info.param.name; });

// Bounds on gains and scales: every value beyond the limit is at it, with its sign, and every other one is as it was.
struct BoundVariant {
  const char* name;
  const char* attention;
  double g0;        // of the scale: g = g0 w
  float shift = 0;  // 1 for gains stored as 1 + w
};

const BoundVariant kBoundVariants[] = {
    {"PerHead", "qk_norm: {clip_weight: 1.5}, logit_scale: {init: 4, clip: 6}", 4},
    {"Shared", "qk_norm: {weight: shared, clip_weight: 1.5}, logit_scale: {kind: per_layer, init: -0.5, clip: 6}",
     -0.5},
    {"ZeroCentred", "qk_norm: {zero_centered: true, clip_weight: 1.5}, logit_scale: {init: 4, clip: 6}", 4, 1},
    {"ZeroCentredShared",
     "qk_norm: {zero_centered: true, weight: shared, clip_weight: 1.5}, logit_scale: {init: 0.25, clip: 6}", 0.25, 1},
    {"Full", "qk_norm: {scope: full, clip_weight: 1.5}, logit_scale: {init: 4, clip: 6}", 4},
};

class Bounds : public ::testing::TestWithParam<BoundVariant> {};

TEST_P(Bounds, HoldGainsAndScalesAfterAnUpdate) {
  constexpr float kGain = 1.5f, kScale = 6;
  const auto world = device_world();
  const std::string text = fmt::format(
      "{{kind: decoder, vocab: 40, hidden: 32, layers: 2, ffn: 32, attention: {{heads: 4, kv_heads: 4, {}}}}}",
      GetParam().attention);
  DecoderCase run(*world, models::read_decoder_config(config::parse(text, "test")), DType::f32, nn::BatchShape{1, 4});
  // Effective values from -4 to 4 for gains, and from -16 to 16 for scales.
  const auto effective = [&](const std::string& name, double stored) {
    return name.ends_with("logit_scale.weight") ? GetParam().g0 * stored : stored + GetParam().shift;
  };
  run.set_parameters([&](const std::string& name, int64_t i) {
    if (name.ends_with("logit_scale.weight")) return (i % 3 - 1) * 16 / GetParam().g0;
    return double(i * 5 % 17 - 8) / 2 - GetParam().shift;
  });
  std::map<std::string, std::vector<float>> before;
  for (const nn::Parameter& parameter : run.decoder.parameters().all())
    before[parameter.spec.name] = host_values(parameter.master);
  EXPECT_FALSE(run.decoder.clip_weights({})) << "no weight of a product";
  int bounded = 0;
  for (const nn::Parameter& parameter : run.decoder.parameters().all()) {
    const std::string& name = parameter.spec.name;
    const std::vector<float> now = host_values(parameter.master), &old = before[name];
    const bool scale = name.ends_with("logit_scale.weight");
    if (!scale && !name.ends_with(".q_norm.weight") && !name.ends_with(".k_norm.weight")) {
      EXPECT_EQ(now, old) << name;
      continue;
    }
    ++bounded;
    const float limit = scale ? kScale : kGain;
    for (size_t i = 0; i < now.size(); ++i) {
      const double was = effective(name, old[i]), is = effective(name, now[i]);
      EXPECT_FLOAT_EQ(float(is), float(std::clamp<double>(was, -limit, limit))) << name << " " << i;
    }
  }
  EXPECT_EQ(bounded, 2 * 3);
}

INSTANTIATE_TEST_SUITE_P(Variants, Bounds, ::testing::ValuesIn(kBoundVariants),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace keel::testing
