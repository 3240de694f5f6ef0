// Loss, every gradient and the statistics of heads against an independent NumPy decoder in double (tests/golden), for
// each kind, scope and placement, split over as many tensor ranks as the test runs on.
#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/models/decoder/compare_gradient.h"
#include "tests/models/decoder/decoder_case.h"

namespace keel::testing {
namespace {

using nlohmann::json;

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_file("decoder")))
    names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

Ids ids_of(const json& golden) {
  Ids ids;
  ids.B = int64_t(golden["tokens"].size());
  ids.T = int64_t(golden["tokens"][0].size());
  ids.documents = !golden["documents"].is_null();
  for (int64_t b = 0; b < ids.B; ++b) {
    int32_t start = 0;
    for (int64_t t = 0; t < ids.T; ++t) {
      ids.tokens.push_back(golden["tokens"][b][t]);
      ids.targets.push_back(golden["targets"][b][t]);
      if (ids.documents && t > 0 && golden["documents"][b][t] != golden["documents"][b][t - 1]) start = int32_t(t);
      ids.positions.push_back(int32_t(t) - start);
      ids.first_key.push_back(start);
    }
  }
  return ids;
}

bool divides(const models::DecoderConfig& config, int ranks) {
  return config.attention.heads % ranks == 0 && config.ffn % ranks == 0 &&
         (config.kv_heads() % ranks == 0 || ranks % config.kv_heads() == 0);
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, LossAndEveryGradient) {
  const json golden = json::parse(std::ifstream(golden_file("decoder/" + GetParam() + ".json")));
  const auto config = models::read_decoder_config(config::parse(golden["model"].dump(), GetParam()));
  const auto world_group = device_world();
  comm::Communicator& world = *world_group;
  if (!divides(config, world.size())) GTEST_SKIP() << "does not divide over " << world.size() << " ranks";
  Ids ids = ids_of(golden);
  DecoderCase run(world, config, DType::f32, {ids.B, ids.T});
  run.set_parameters([&](const std::string& name, int64_t i) {
    const bool qk = name.find("q_norm") != std::string::npos || name.find("k_norm") != std::string::npos;
    const bool zero_centered = qk ? config.attention.qk_norm.zero_centered : config.norm.zero_centered;
    return golden_value(name, i, golden["amplitude"], zero_centered);
  });

  const auto sums = run.step(ids, {golden["loss_options"]["z_loss"], golden["loss_options"]["label_smoothing"]});
  EXPECT_NEAR(sums.loss / double(sums.counted), golden["loss"].get<double>(),
              1e-5 * std::abs(golden["loss"].get<double>()));
  EXPECT_NEAR(sums.z_loss / double(sums.counted), golden["z_loss"].get<double>(),
              1e-5 * std::abs(golden["z_loss"].get<double>()) + 1e-12);

  double squares = 0;
  for (const auto& [name, values] : golden["gradients"].items())
    for (double value : values) squares += value * value;
  const double norm = std::sqrt(squares);
  EXPECT_NEAR(run.gradient_norm(), norm, 1e-5 * norm);
  EXPECT_EQ(run.decoder.parameters().all().size(), golden["gradients"].size());
  for (const nn::Parameter& parameter : run.decoder.parameters().all()) {
    const std::string& name = parameter.spec.name;
    ASSERT_TRUE(golden["gradients"].contains(name)) << name;
    const Distance d = compare(world, parameter, golden["gradients"][name]);
    const double rounding = golden["rounding"][name];
    // The floor is one fp32 rounding of the whole gradient: some of these gradients are zero, or sums that cancel. On
    // GPUs, which add in more and shorter sums, two.
    const double floor = test_device().kind == DeviceKind::cuda ? 1.2e-7 : 6e-8;
    EXPECT_LE(d.difference, 1e-5 * d.size + floor * norm + 4 * rounding) << name << " of norm " << d.size;
  }

  const nn::ModelTelemetry& heads = run.decoder.telemetry();
  const int64_t H = heads.largest_logit.size(1), first = world.rank() * H;
  const std::vector<float> largest_logit = host_values(heads.largest_logit), entropies = host_values(heads.entropy);
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (int64_t h = 0; h < H; ++h) {
      const double largest = golden["largest_logit"][layer][first + h], entropy = golden["entropy"][layer][first + h];
      EXPECT_NEAR(largest_logit[size_t(layer * H + h)], largest, 1e-5 * largest);
      EXPECT_NEAR(entropies[size_t(layer * H + h)] / double(ids.B * ids.T), entropy, 1e-5 * entropy + 1e-6);
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, ::testing::ValuesIn(cases()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace keel::testing
