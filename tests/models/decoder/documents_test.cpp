// Documents packed into one row do not see each other (CASES R18): A of five tokens and B of three.
#include <gtest/gtest.h>

#include "tests/models/decoder/decoder_case.h"
#include "tests/support/compare.h"

namespace keel::testing {
namespace {

const std::vector<int32_t> kA = {1, 7, 3, 9, 2}, kOtherA = {8, 4, 4, 11, 6}, kB = {1, 5, 3};
// Of the tokens before; the last token of A predicts nothing.
const std::vector<int32_t> kTargetsA = {7, 3, 9, 2, -1}, kTargetsB = {5, 3, 2}, kNone = {-1, -1, -1, -1, -1};

Ids joined(const std::vector<int32_t>& a, const std::vector<int32_t>& targets_of_a, bool with_b = true) {
  Ids ids{.tokens = a, .targets = targets_of_a, .B = 1, .documents = true};
  const auto start = int32_t(a.size());
  for (int32_t t = 0; t < start; ++t) ids.positions.push_back(t), ids.first_key.push_back(0);
  for (int32_t t = 0; with_b && t < 3; ++t) {
    ids.tokens.push_back(kB[size_t(t)]);
    ids.targets.push_back(kTargetsB[size_t(t)]);
    ids.positions.push_back(t);
    ids.first_key.push_back(start);
  }
  ids.T = int64_t(ids.tokens.size());
  return ids;
}

struct Left {
  double loss = 0, gradient_norm = 0;
  double counted = 0;
  Values logits;  // after the last token, this rank's
  std::vector<Values> gradients;
};

class Packed : public ::testing::TestWithParam<const char*> {
 protected:
  Packed()
      : world(device_world()),
        config(models::read_decoder_config(config::parse(
            fmt::format("{{kind: decoder, vocab: 12, hidden: 32, layers: 3, ffn: 48, {}}}", GetParam()), "test"))) {}

  Left run(Ids ids) {
    DecoderCase model(*world, config, DType::f32, {1, ids.T});
    model.set_parameters(random_value);
    const auto sums = model.step(ids, {});
    Left left{sums.loss, model.gradient_norm(), sums.counted, {}, {}};
    for (const nn::Parameter& parameter : model.decoder.parameters().all())
      left.gradients.push_back(to_doubles(parameter.gradient));
    DeviceTensor logits({1, model.decoder.classifier().table->local[0]}, DType::f32);
    model.decoder.next_logits(logits, ids.batch());
    for (double logit : to_doubles(logits))
      if (std::isfinite(logit)) left.logits.push_back(logit);
    return left;
  }

  std::unique_ptr<comm::Communicator> world;
  const models::DecoderConfig config;
};

TEST_P(Packed, ADocumentIsAsIfAlone) {
  const Left alone = run(joined({}, {})), packed = run(joined(kA, kNone));
  EXPECT_EQ(packed.counted, 3);
  EXPECT_NEAR(packed.loss, alone.loss, 1e-5 * alone.loss);
  EXPECT_TRUE(near_by_norm(packed.logits, alone.logits, kFloat32));
  // The floor is one fp32 rounding of the whole gradient: those of scales are sums that cancel.
  for (size_t i = 0; i < alone.gradients.size(); ++i)
    EXPECT_TRUE(near_by_norm(packed.gradients[i], alone.gradients[i], kFloat32, 6e-8 * alone.gradient_norm))
        << "parameter " << i;
}

TEST_P(Packed, AnotherNeighbourChangesNoBit) {
  const Left packed = run(joined(kA, kNone)), other = run(joined(kOtherA, kNone));
  EXPECT_EQ(other.loss, packed.loss);
  EXPECT_EQ(other.logits, packed.logits);
  EXPECT_EQ(other.gradients, packed.gradients);
  // Without the document mask it does.
  Ids seen = joined(kA, kNone);
  seen.documents = false;
  EXPECT_NE(run(seen).loss, packed.loss);
}

TEST_P(Packed, LossIsTheTokenWeightedMean) {
  const Left a = run(joined(kA, kTargetsA, false)), b = run(joined({}, {})), both = run(joined(kA, kTargetsA));
  EXPECT_EQ(both.counted, 7);
  EXPECT_NEAR(both.loss / 7, (a.loss + b.loss) / (a.counted + b.counted), 1e-5 * both.loss / 7);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Packed,
    ::testing::Values("attention: {heads: 4, kv_heads: 2}",
                      "attention: {heads: 4, kv_heads: 4, window: 3, qk_norm: {scope: full}}, layer_pattern: [local, "
                      "global]"),
    [](const auto& info) { return info.index == 0 ? "Default" : "WindowsAndFullScope"; });

}  // namespace
}  // namespace keel::testing
