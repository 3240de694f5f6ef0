// Texts of 32,768 tokens, where what they must give is known from short ones.
#include <gtest/gtest.h>

#include "framework/base/rng.h"
#include "tests/models/decoder/decoder_case.h"

namespace keel::testing {
namespace {

constexpr int64_t kLong = 32768;

models::DecoderConfig config_of(const std::string& more) {
  return models::read_decoder_config(config::parse("{vocab: 50, hidden: 16, ffn: 24, " + more + "}", "model"));
}

void set_random(DecoderCase& run) {
  run.set_parameters(random_value);
}

// The last `length` tokens of the text, where they stand in it.
Ids tail(const Ids& text, int64_t length) {
  Ids ids{.B = 1, .T = length};
  ids.tokens.assign(text.tokens.end() - length, text.tokens.end());
  ids.positions.assign(text.positions.end() - length, text.positions.end());
  ids.targets = ids.tokens;
  return ids;
}

// Two layers of windows of 64 look back on 127 tokens, wherever in the text they stand.
TEST(LongText, WindowsSeeTheirTokensAlone) {
  const auto world = device_world();
  DecoderCase run(*world, config_of("layers: 2, attention: {heads: 1, window: 64}, layer_pattern: [local]"), DType::f32,
                  {1, kLong});
  set_random(run);
  Ids text{.B = 1, .T = kLong};
  for (int64_t i = 0; i < kLong; ++i) {
    text.tokens.push_back(int32_t(uniform(1, uint64_t(i)) * 50));
    text.positions.push_back(int32_t(i));
  }
  text.targets = text.tokens;
  const int64_t columns = run.decoder.classifier().table->local[0];
  const auto logits = [&](Ids ids) {
    const DeviceTensor own({1, columns}, DType::f32);
    run.decoder.next_logits(own, ids.batch());
    return host_values(own);
  };
  const std::vector<float> whole = logits(text), seen = logits(tail(text, 127)), less = logits(tail(text, 63));
  double difference = 0;
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_NEAR(whole[i], seen[i], 1e-4);
    difference = std::max(difference, double(std::abs(whole[i] - less[i])));
  }
  EXPECT_GT(difference, 1e-3);
}

// A token said again and again, without positions, is attended to evenly: the loss and every gradient are those of one.
TEST(LongText, OneTokenManyTimes) {
  const auto world = device_world();
  const models::DecoderConfig config =
      config_of("layers: 1, attention: {heads: 1}, positions: {global: none, local: none}");
  const auto step = [&](int64_t length) {
    DecoderCase run(*world, config, DType::f32, {1, length});
    set_random(run);
    Ids ids{.B = 1, .T = length};
    ids.tokens.assign(size_t(length), 7);
    ids.targets.assign(size_t(length), 8);
    ids.positions.assign(size_t(length), 0);
    const ops::CrossEntropySums sums = run.step(ids, {});
    std::vector<float> gradients = {float(sums.loss / double(sums.counted))};
    for (const nn::Parameter& parameter : run.decoder.parameters().all()) {
      const std::vector<float> own = host_values(parameter.gradient);
      gradients.insert(gradients.end(), own.begin(), own.end());
    }
    return gradients;
  };
  const std::vector<float> one = step(1), many = step(kLong);
  ASSERT_EQ(one.size(), many.size());
  double largest = 0;
  for (float value : one) largest = std::max(largest, double(std::abs(value)));
  for (size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(many[i], one[i], 1e-4 * largest) << i;
}

}  // namespace
}  // namespace keel::testing
