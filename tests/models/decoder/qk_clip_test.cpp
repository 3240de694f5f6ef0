// QK-clip (QKNORM.md section 6): after it, the same batch's largest logits in the first layer, which nothing before it
// has changed, are the old ones times the factors that the formula gives.
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
    {"ScalePerLayer", "logit_scale: {kind: per_layer}", Serves::all_heads, "logit_scale.weight"},
    {"GainPerHead", "logit_scale: {kind: fixed}", Serves::one_head, "q_norm.weight"},
    {"GainShared", "logit_scale: {kind: fixed}, qk_norm: {weight: shared}", Serves::all_heads, "q_norm.weight"},
    {"GainZeroCentred", "logit_scale: {kind: fixed}, qk_norm: {zero_centered: true, weight_init: 1.5}",
     Serves::one_head, "q_norm.weight"},
    {"Projection", "qk_norm: {kind: none}, logit_scale: {kind: fixed}", Serves::one_head, ".q.", true},
};

class QkClip : public ::testing::TestWithParam<Variant> {
 protected:
  QkClip() : world(comm::make_mpi_communicator(MPI_COMM_WORLD)) {
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
    std::vector<float> all(size_t(own.size(1)) * size_t(world->size()));
    world->all_gather(Tensor(all.data(), {int64_t(all.size())}, DType::f32),
                      own.slice(0, 0, 1).reshaped({own.size(1)}));
    return all;
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
    weights[parameter.spec.name] = {parameter.master.as<float>(),
                                    parameter.master.as<float>() + parameter.local.elements()};
  const Tensor largest = decoder.telemetry().largest_logit;
  OwnedTensor factors(largest.shape(), DType::f32);
  for (int64_t i = 0; i < largest.elements(); ++i)
    factors.tensor.as<float>()[i] = std::min(1.f, tau / largest.as<float>()[i]);
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
    const bool same = std::equal(old.begin(), old.end(), parameter.master.as<float>());
    if (parameter.spec.name.find(GetParam().changed) == std::string::npos) {
      EXPECT_TRUE(same) << parameter.spec.name << " changed";
    }
  }
}

TEST_P(QkClip, LeavesEveryBitWhereNothingPassedTau) {
  const std::vector<float> before = largest_of_first_layer();
  OwnedTensor factors(run->decoder.telemetry().largest_logit.shape(), DType::f32);
  std::fill_n(factors.tensor.as<float>(), factors.tensor.elements(), 1.f);
  run->decoder.clip_weights(factors);
  run->decoder.refresh();
  const std::vector<float> after = largest_of_first_layer();
  EXPECT_EQ(after, before);
}

INSTANTIATE_TEST_SUITE_P(Variants, QkClip, ::testing::ValuesIn(kVariants),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace keel::testing
