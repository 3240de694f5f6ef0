// Models of the published families made by Hugging Face transformers (tests/golden/families.py), imported: logits, loss
// and every gradient are those that transformers computes, split over as many tensor ranks as the test runs on.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/io/files.h"
#include "framework/optim/adamw.h"
#include "launch/convert/imported_weights.h"
#include "tests/models/decoder/compare_gradient.h"
#include "tests/models/decoder/decoder_case.h"
#include "tests/support/golden.h"

namespace keel::testing {
namespace {

using checkpoints::safetensors::ModelFiles;
using nlohmann::json;

const std::string kFamilies = golden_file("families/");

Ids ids_of(const json& tokens, const json& targets) {
  Ids ids;
  ids.B = int64_t(tokens.size());
  ids.T = int64_t(tokens[0].size());
  for (int64_t b = 0; b < ids.B; ++b)
    for (int64_t t = 0; t < ids.T; ++t) {
      ids.tokens.push_back(tokens[size_t(b)][size_t(t)]);
      ids.targets.push_back(targets[size_t(b)][size_t(t)]);
      ids.positions.push_back(int32_t(t));
    }
  return ids;
}

// A family's model on this rank, with what transformers says of it.
class Family {
 public:
  Family(const std::string& name, DType activation)
      : folder(kFamilies + name),
        expected(json::parse(std::ifstream(folder + "/expected.json"))),
        world(comm::make_mpi_communicator(MPI_COMM_WORLD)),
        config(models::read_hugging_face_config(io::read_file(folder + "/config.json", 1 << 20), name).decoder),
        ids(ids_of(expected["tokens"], expected["targets"])),
        run(*world, config, activation, {ids.B, ids.T}) {
    ImportedWeights(run.decoder, {.from = folder, .to = ""}).fill();
    weights_changed();
  }

  void weights_changed() {
    run.decoder.parameters().round_to_compute();
    run.decoder.refresh();
  }

  // [B, T, V]: those after every prefix.
  std::vector<float> logits() {
    const int64_t V = config.vocab.value(), columns = run.decoder.classifier().table->local[0];
    std::vector<float> all(size_t(ids.B * ids.T * V));
    OwnedTensor own({ids.B, columns}, DType::f32), gathered({world->size(), ids.B, columns}, DType::f32);
    for (int64_t length = 1; length <= ids.T; ++length) {
      Ids prefix{.B = ids.B, .T = length};
      for (int64_t b = 0; b < ids.B; ++b)
        for (int64_t t = 0; t < length; ++t) {
          prefix.tokens.push_back(ids.tokens[size_t(b * ids.T + t)]);
          prefix.positions.push_back(int32_t(t));
        }
      prefix.targets = prefix.tokens;
      run.decoder.next_logits(own, prefix.batch());
      run.group().gather(gathered, own);
      for (int64_t b = 0; b < ids.B; ++b)
        for (int64_t v = 0; v < V; ++v)
          all[size_t((b * ids.T + length - 1) * V + v)] =
              gathered.tensor.as<float>()[(v / columns * ids.B + b) * columns + v % columns];
    }
    return all;
  }

  std::vector<float> expected_values(const std::string& name) {
    const ModelFiles file(folder + "/expected.safetensors");
    std::vector<float> values(size_t(file.find(name)->elements()));
    file.read(name, 0, values);
    return values;
  }

  std::string folder;
  json expected;
  std::unique_ptr<comm::Communicator> world;
  models::DecoderConfig config;
  Ids ids;
  DecoderCase run;
};

class Families : public ::testing::TestWithParam<const char*> {};

TEST_P(Families, LogitsAreTheOriginals) {
  Family family(GetParam(), DType::f32);
  const std::vector<float> logits = family.logits(), expected = family.expected_values("logits");
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-4) << "logit " << i;
}

TEST_P(Families, LogitsInBf16) {
  Family family(GetParam(), DType::bf16);
  const std::vector<float> logits = family.logits(), expected = family.expected_values("logits");
  double difference = 0, size = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    difference += std::pow(double(logits[i]) - expected[i], 2);
    size += std::pow(double(expected[i]), 2);
  }
  EXPECT_LE(std::sqrt(difference), 2e-2 * std::sqrt(size));
}

TEST_P(Families, LossAndEveryGradientAreTheOriginals) {
  Family family(GetParam(), DType::f32);
  const auto sums = family.run.step(family.ids, {});
  const double loss = family.expected["loss"];
  EXPECT_NEAR(sums.loss / double(sums.counted), loss, 1e-5 * loss);
  const double norm = family.run.gradient_norm();
  for (const models::TensorMapping& mapping : models::tensor_mappings(family.run.decoder)) {
    const std::vector<float> values = family.expected_values("gradient." + mapping.theirs);
    const Distance d = compare(*family.world, *mapping.parameter, {values.begin(), values.end()});
    EXPECT_GT(d.size, 0) << mapping.theirs;
    EXPECT_LE(d.difference, 1e-3 * d.size + 1e-7 * norm) << mapping.theirs << " of norm " << d.size;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::Values("llama3", "olmo2", "qwen3", "qwen3_yarn", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

class Training : public ::testing::TestWithParam<const char*> {};

// Twenty steps of AdamW from the same weights over the same batches: the loss of each step, and its gradient's norm.
TEST_P(Training, TwentyStepsAreTheOriginals) {
  Family family(GetParam(), DType::f32);
  const json& training = family.expected["training"];
  const json& options = training["adamw"];
  nn::ParameterSet& parameters = family.run.decoder.parameters();
  std::vector<nn::ArenaRange> spans;
  for (size_t i = 0; i < parameters.arenas().size(); ++i)
    spans.push_back({.arena = int(i), .begin = 0, .end = parameters.arenas()[i].elements});
  optim::Adamw optimizer(parameters, spans, {options["beta1"], options["beta2"], options["eps"]});
  const double lr = options["lr"], decay = options["weight_decay"], clip = options["clip_norm"];
  for (size_t step = 0; step < training["losses"].size(); ++step) {
    Ids ids = ids_of(training["tokens"][step], training["targets"][step]);
    const auto sums = family.run.step(ids, {});
    const double loss = training["losses"][step], norm = family.run.gradient_norm();
    EXPECT_NEAR(sums.loss / double(sums.counted), loss, 1e-3 * loss) << "step " << step;
    EXPECT_NEAR(norm, training["gradient_norms"][step].get<double>(), 1e-2 * norm) << "step " << step;
    const ops::AdamwRates rates = optimizer.rates({.lr = lr, .decay = lr * decay, .updates = int64_t(step) + 1});
    optimizer.step(DeviceTensor({1}, DType::f64), device_tensor(std::vector<float>(rates.begin(), rates.end())),
                   device_tensor(std::vector<float>{float(std::min(1.0, clip / norm)), 1}));
    family.weights_changed();
  }
}

INSTANTIATE_TEST_SUITE_P(All, Training, ::testing::Values("qwen3", "olmo2", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace keel::testing
