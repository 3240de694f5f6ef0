// A whole bf16 model against the same model in fp32, which golden_test.cpp proves: loss, logits and every gradient
// within the tolerances of whole bf16 models, with the residual stream in fp32 and in bf16, split over as many tensor
// ranks as the test runs on. (Not against the golden values themselves: their weights make matrices of rank 2, and
// rounding those to bf16 alone moves many gradients by more than the tolerance, as the files' own `rounding` says.)
// Weights are small and tokens many, so that little of what is compared is the rest of large sums: at most 0.82 of the
// tolerance is used, with bf16 instructions and without.
#include <gtest/gtest.h>

#include "tests/models/decoder/decoder_case.h"
#include "tests/support/compare.h"

namespace keel::testing {
namespace {

constexpr double kWholeModel = 2e-2, kOfAllGradients = 1e-4;

struct Variant {
  const char* name;
  const char* text;
};

const Variant kVariants[] = {
    {"Pre", "attention: {heads: 4, kv_heads: 2, qk_norm: {cast: before_weight}}"},
    {"WithoutQkNorm", "attention: {heads: 4, kv_heads: 1, qk_norm: {kind: none}}"},
    {"PostFull", "norm: {placement: post}, attention: {heads: 4, qk_norm: {scope: full}, logit_scale: {kind: fixed}}"},
    {"Sandwich",
     "norm: {placement: sandwich}, mlp: {kind: geglu}, tie_embeddings: true, embedding_scale: sqrt_hidden, "
     "layer_pattern: [local, global], "
     "attention: {heads: 4, kv_heads: 2, window: 5, qk_norm: {weight: shared}}"},
    {"Parallel",
     "parallel_block: true, norm: {kind: layer}, mlp: {kind: gelu, bias: true}, positions: {global: none, local: none, "
     "learned: true, max_positions: 48}, attention: {heads: 4, bias: {qkv: true, output: true}, qk_norm: {kind: layer, "
     "weight: shared}}"},
    {"L2", "recompute: block, attention: {heads: 4, kv_heads: 4, qk_norm: {kind: l2}}"},
};

struct Distance {
  double difference = 0, size = 0;  // norms
};

// Of what this rank and the others hold; what several hold counts as often in both.
Distance distance(comm::Communicator& world, const ConstTensor& actual, const ConstTensor& expected,
                  double factor = 1) {
  const Values a = scaled(to_doubles(actual), factor), b = to_doubles(expected);
  return {std::sqrt(comm::all_reduce_value(world, std::pow(norm_of(difference(a, b)), 2))),
          std::sqrt(comm::all_reduce_value(world, std::pow(norm_of(b), 2)))};
}

class WholeModelBf16 : public ::testing::TestWithParam<std::tuple<Variant, models::ResidualType>> {
 protected:
  static constexpr int64_t kVocabulary = 60, kSequences = 6, kLength = 48;

  static models::DecoderConfig config() {
    auto config = models::read_decoder_config(config::parse(
        fmt::format("{{hidden: 64, layers: 2, ffn: 96, vocab: {}, {}}}", kVocabulary, std::get<0>(GetParam()).text),
        "test"));
    config.residual = std::get<1>(GetParam());
    return config;
  }

  struct Run {
    Run(comm::Communicator& world, DType activation)
        : model(world, config(), activation, {kSequences, kLength}),
          logits({kSequences, model.decoder.classifier().table->local[0]}, DType::f32) {
      model.set_parameters([](const std::string& name, int64_t i) {
        const double base = name.ends_with("norm.weight") || name.ends_with("logit_scale.weight") ? 1 : 0;
        return float(
            bf16(float(base + (base > 0 ? 1 : 0.08) * (random_value(name, i) - base))));  // the same in both types
      });
      Ids ids{.B = kSequences, .T = kLength};
      for (int64_t i = 0; i < kSequences * kLength; ++i) {
        ids.tokens.push_back(int32_t(random_integer(1, uint64_t(i), 0, kVocabulary)));
        ids.targets.push_back(i % 7 == 3 ? -1 : int32_t(random_integer(2, uint64_t(i), 0, kVocabulary)));
        ids.positions.push_back(int32_t(i % kLength));
      }
      sums = model.step(ids, {.z_loss = 1e-3});
      model.decoder.next_logits(logits, ids.batch());
    }
    DecoderCase model;
    DeviceTensor logits;
    ops::CrossEntropySums sums;
  };
};

TEST_P(WholeModelBf16, LossLogitsAndEveryGradient) {
  const auto world = device_world();
  Run exact(*world, DType::f32), rounded(*world, DType::bf16);
  const double loss = exact.sums.mean_loss(), z_loss = exact.sums.z_loss;
  EXPECT_NEAR(rounded.sums.mean_loss(), loss, kOneOpBf16 * loss);
  EXPECT_NEAR(rounded.sums.z_loss, z_loss, kOneOpBf16 * z_loss);
  const Distance of_logits = distance(*world, rounded.logits, exact.logits);
  EXPECT_LE(of_logits.difference, kWholeModel * of_logits.size);
  const Distance planted = distance(*world, rounded.logits, exact.logits, 1.05);
  EXPECT_GT(planted.difference, kWholeModel * planted.size) << "a planted mistake passed";

  const double norm = exact.model.gradient_norm();
  const auto &all = exact.model.decoder.parameters().all(), &halves = rounded.model.decoder.parameters().all();
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].spec.name);
    const auto near = [&](double factor) {
      const Distance d = distance(*world, halves[i].gradient, all[i].gradient, factor);
      const double allowed = kWholeModel * d.size + kOfAllGradients * norm;
      auto result = d.difference <= allowed ? ::testing::AssertionSuccess() : ::testing::AssertionFailure();
      return result << d.difference << " of " << d.size << ", allowed " << allowed;
    };
    EXPECT_TRUE(near(1));
    EXPECT_TRUE(fails(near(1.2)));
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, WholeModelBf16,
                         ::testing::Combine(::testing::ValuesIn(kVariants),
                                            ::testing::Values(models::ResidualType::fp32, models::ResidualType::bf16)),
                         [](const auto& info) {
                           const bool wide = std::get<1>(info.param) == models::ResidualType::fp32;
                           return std::string(std::get<0>(info.param).name) + (wide ? "Fp32Residual" : "Bf16Residual");
                         });

}  // namespace
}  // namespace keel::testing
