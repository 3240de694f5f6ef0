// What telemetry.h5 says of whole training steps: against brute force in double on one rank, and the same numbers on
// every split of four ranks, with documents, windows, shared gains and replicated KV heads.
#include <gtest/gtest.h>

#include "framework/io/hdf5.h"
#include "framework/train/run_files_hook.h"
#include "models/decoder/telemetry_hook.h"
#include "tests/models/decoder/decoder_run.h"
#include "tests/support/compare.h"
#include "tests/support/reference/attention.h"

namespace keel::testing {
namespace {

constexpr int64_t kVocabulary = 997, kLength = 24, kSequences = 12, kSteps = 2, kLayers = 2, kWindow = 5;

// By name of the array; row after row.
using Arrays = std::map<std::string, Values>;

// The same statistics from what one rank holds of a step of one micro-batch.
class Reference : public train::Hook {
 public:
  Reference(models::Decoder& decoder, const train::StepBatches& batches, const data::SampleOrder& order)
      : decoder_(decoder), batches_(batches), order_(order) {}

  void start(const train::Progress&) override { remember_weights(); }
  train::Verdict judge(const train::StepReport& report) override {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      look_at_attention(layer, report.first_sample);
      look_at_stream(layer);
      const nn::Attention& attention = decoder_.blocks()[size_t(layer)]->attention;
      add_gradient("q_gain_gradient", attention.qk_norm.q_weight, attention.spec.head_dim);
      add_gradient("k_gain_gradient", attention.qk_norm.k_weight, attention.spec.head_dim);
      add_gradient("logit_scale_gradient", attention.logit_scale, 1);
      add_update(layer);
    }
    remember_weights();
    return {};
  }

  Arrays expected;

 private:
  void remember_weights() {
    for (const nn::Parameter& parameter : decoder_.parameters().all())
      before_[parameter.spec.name] = to_doubles(parameter.master);
  }

  void look_at_attention(int64_t layer, int64_t first_sample) {
    const nn::Attention& attention = decoder_.blocks()[size_t(layer)]->attention;
    const nn::Attention::Saved& saved = decoder_.block_saved(layer).attention;
    const int64_t H = attention.heads(), G = attention.kv_heads(), d = attention.spec.head_dim;
    reference::Attention x{.B = kSequences, .T_q = kLength, .T_k = kLength, .H = H, .G = G, .d = d};
    x.window = attention.spec.window;
    x.q = to_doubles(saved.q), x.k = to_doubles(saved.k), x.scale = to_doubles(saved.scale);
    x.v.resize(x.k.size());
    for (int32_t key : host_values<int32_t>(batches_.micro_batch(0).first_key)) x.first_key.push_back(key);
    const reference::AttentionResult result = reference::attention_forward(x);
    for (int64_t h = 0; h < H; ++h) {
      expected["largest_logit"].push_back(result.largest_logit[size_t(h)]);
      expected["entropy"].push_back(result.entropy[size_t(h)] / double(kSequences * kLength));
      const reference::AttentionPlace& place = result.place[size_t(h)];
      const data::SampleId sample = order_(first_sample + place.b);
      for (int64_t number : {int64_t(sample.source), sample.sample, place.t, place.j})
        expected["largest_logit_place"].push_back(double(number));
    }
    const Values qkv = to_doubles(saved.qkv);
    for (int64_t head = 0; head < H + G; ++head) {
      double squares = 0;
      for (int64_t row = 0; row < kSequences * kLength; ++row)
        for (int64_t i = 0; i < d; ++i) squares += std::pow(qkv[size_t((row * (H + 2 * G) + head) * d + i)], 2);
      expected[head < H ? "q_rms" : "k_rms"].push_back(std::sqrt(squares / double(kSequences * kLength * d)));
    }
  }

  void look_at_stream(int64_t layer) {
    const Values x = to_doubles(decoder_.block_saved(layer).mlp_stream.residual);
    double outliers = 0, squares = 0, fourth_powers = 0;
    for (double value : x) {
      outliers += std::abs(value) > 6;
      squares += std::pow(value, 2);
      fourth_powers += std::pow(value, 4);
    }
    const auto n = double(x.size());
    expected["stream_outliers"].push_back(outliers / n);
    expected["stream_kurtosis"].push_back(fourth_powers / n / std::pow(squares / n, 2));
  }

  void add_gradient(const std::string& name, const nn::Parameter* weight, int64_t elements) {
    if (!weight) return;
    const Values gradient = to_doubles(weight->gradient);
    for (size_t i = 0; i < gradient.size(); i += size_t(elements))
      expected[name].push_back(norm_of(Values(&gradient[i], &gradient[i] + elements)));
  }

  void add_update(int64_t layer) {
    double change = 0, weights = 0;
    for (const nn::Parameter& parameter : decoder_.parameters().all()) {
      const std::string& name = parameter.spec.name;
      if (!name.starts_with(fmt::format("blocks.{}.", layer)) || parameter.spec.shape.dims() != 2) continue;
      if (name.ends_with("norm.weight")) continue;
      const Values now = to_doubles(parameter.master);
      change += std::pow(norm_of(difference(now, before_[name])), 2);
      weights += std::pow(norm_of(now), 2);
    }
    expected["update_ratio"].push_back(std::sqrt(change / weights));
  }

  models::Decoder& decoder_;
  const train::StepBatches& batches_;
  const data::SampleOrder& order_;
  std::map<std::string, Values> before_;
};

Arrays read_arrays(io::IoThread& io, const std::string& path) {
  return io.run([&](io::IoContext& context) {
    Arrays arrays;
    const io::File file = io::File::open(context, path, io::Access::read);
    for (const std::string& name : file.names()) {
      const io::Dataset values = file.open_dataset(name + "/value");
      EXPECT_EQ(values.dims()[0], uint64_t(kSteps)) << name;
      auto take = [&](const auto& all) { arrays[name].assign(all.begin(), all.end()); };
      values.holds<float>() ? take(values.read_all<float>()) : take(values.read_all<int64_t>());
    }
    return arrays;
  });
}

struct Variant {
  const char* name;
  const char* text;
};

class Telemetry : public ::testing::TestWithParam<Variant> {
 protected:
  Telemetry() : world(device_world()), dataset(tokens.dataset(kLength)) {}

  // On as many ranks as the layout has; every group of so many does the same. What its first rank wrote; none
  // elsewhere.
  Arrays run(const Layout& layout, int64_t micro_sequences = 1, DType activation = DType::f32,
             Arrays* expected = nullptr, const std::string& recompute = "none") {
    const auto ranks = world->split(world->rank() / layout.ranks(), world->rank());
    const models::DecoderConfig config = small_decoder(
        kVocabulary, fmt::format("tie_embeddings: true, layer_pattern: [local, global], recompute: {}, residual: {}, "
                                 "init: {{outliers: {{features: 16, factor: 300}}}}, "
                                 "attention: {{heads: 4, head_dim: 6, window: {}, {}}}",
                                 recompute, activation == DType::f32 ? "fp32" : "bf16", kWindow, GetParam().text));
    const int64_t micro_steps = kSequences / layout.data / micro_sequences;
    DecoderRun training(*ranks, dataset, config,
                        {.tensor = layout.tensor,
                         .batch = {micro_sequences, kLength, micro_steps},
                         .activation = activation,
                         .bucket_elements = on_cpu() ? 96 : 2048,  // so small that pieces cut single heads' gains
                         .trainer = {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 3e-3},
                                     .weight_decay = 0.1,
                                     .clip_norm = 0.1,
                                     .qk_clip_tau = 100,
                                     .total_steps = kSteps,
                                     .telemetry_every = 1,
                                     .zero = layout.zero}});
    io::IoThread io;
    const std::string directory = folder / fmt::format("run-{}", ++runs);
    std::filesystem::create_directories(directory);
    train::RunFilesHook files(
        io, {.directory = directory, .speaker = ranks->rank() == 0, .tensorboard = false, .throughput = {}});
    models::TelemetryHook telemetry(training.decoder, training.mesh, files);
    Reference reference(training.decoder, training.batches, training.order);
    training.trainer->add(files);
    if (expected) training.trainer->add(reference);
    training.trainer->add(telemetry);
    training.go();
    if (expected) *expected = reference.expected;
    return ranks->rank() == 0 ? read_arrays(io, directory + "/telemetry.h5") : Arrays();
  }

  std::unique_ptr<comm::Communicator> world;
  // No token twice in a document: equal pairs at one distance would have equal logits.
  const TokenFile tokens{kVocabulary, [](int64_t p) { return p * 379; }};
  const data::Dataset dataset;
  const TemporaryFolder folder;
  int runs = 0;
};

// The first step's numbers; later ones differ by how the ranks' sums were rounded.
Values first_row(const Values& all) {
  return Values(all.begin(), all.begin() + std::ptrdiff_t(all.size() / kSteps));
}

void expect_same(const Values& actual, const Values& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  if (what.starts_with("largest_logit_place")) {
    EXPECT_EQ(actual, expected) << what;
    return;
  }
  EXPECT_TRUE(near_by_norm(first_row(actual), first_row(expected), 1e-5)) << what;
  EXPECT_TRUE(near_by_norm(actual, expected, 1e-4)) << what;
}

TEST_P(Telemetry, IsBruteForceAndTheSameOnEveryLayout) {
  Arrays expected;
  const Arrays whole = run({}, kSequences, DType::f32, &expected), one = run({});
  EXPECT_EQ(expected.size(), 11u);
  EXPECT_GT(norm_of(expected.at("stream_outliers")), 0);
  for (const auto& [name, values] : expected) expect_same(whole.at(name), values, name);
  for (const auto& [name, values] : one)
    if (name != "parallel") expect_same(values, whole.at(name), name + " of single sequences");  // which it looks at
  EXPECT_GT(norm_of(one.at("parallel")), 0);
  for (const char* name : {"stream_saturated", "stream_flushed", "weights_saturated", "weights_flushed"})
    EXPECT_FALSE(one.contains(name)) << "fp32: " << name;

  std::vector<Layout> layouts = {{2, 2, true}};
  if (on_cpu()) layouts.insert(layouts.end(), {{1, 2, true}, {2, 1, true}, {2, 2, false}, {4, 1, false}});
  for (const Layout& layout : layouts) {
    const Arrays other = run(layout);
    if (world->rank() % layout.ranks() != 0) continue;
    EXPECT_EQ(other.size(), one.size());
    for (const auto& [name, values] : one) expect_same(other.at(name), values, name + " at " + text_of(layout));
  }
}

TEST_P(Telemetry, IsTheSameWhereForwardKeepsLess) {
  const Arrays kept = run({2, 2, true});
  for (const char* recompute : on_cpu() ? std::vector{"attention", "block"} : std::vector{"block"}) {
    const Arrays again = run({2, 2, true}, 1, DType::f32, nullptr, recompute);
    EXPECT_EQ(again, kept) << recompute;
  }
}

TEST_P(Telemetry, OfBf16TellsWhatItsRangeLoses) {
  const Arrays arrays = run({2, 2, true}, 1, DType::bf16);
  if (world->rank() != 0) return;
  for (const char* name : {"stream_saturated", "weights_saturated", "weights_flushed"})
    EXPECT_EQ(arrays.at(name), Values(size_t(kSteps * kLayers), 0.0)) << name;
  // A sum of bf16 values is exactly 0 now and then.
  EXPECT_LT(norm_of(arrays.at("stream_flushed")), 5e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Telemetry,
    ::testing::Values(Variant{"PerHead", "kv_heads: 2"},
                      Variant{"Shared", "kv_heads: 4, qk_norm: {weight: shared}, logit_scale: {kind: per_layer}"},
                      Variant{"FullOneKvHead", "kv_heads: 1, qk_norm: {scope: full}"}),
    [](const auto& info) { return info.param.name; });

// Trouble that an update showed at one step.
struct TroubleAt : train::Hook {
  explicit TroubleAt(int64_t troubled) : troubled(troubled) {}
  train::Verdict judge_update(const train::StepReport& report) override {
    return {report.step == troubled ? train::Action::lower_lr : train::Action::proceed, "planted"};
  }
  train::Verdict after_step(const train::StepReport& report, const train::Verdict&, const train::Progress&) override {
    reports.push_back(report);
    return {};
  }
  int64_t troubled;
  std::vector<train::StepReport> reports;
};

// The heads of a step in trouble are looked at after its update, under the weights that the next step begins with; what
// every step shows is not touched, nor is the run.
TEST(TroubleAfterAnUpdate, ShowsItsHeads) {
  const auto world = device_world();
  const auto ranks = world->split(world->rank() / 2, world->rank());
  const TokenFile tokens(kVocabulary);
  const data::Dataset dataset = tokens.dataset(kLength);
  auto run = [&](int64_t telemetry_every, int64_t troubled) {
    DecoderRun training(*ranks, dataset, small_decoder(kVocabulary, "attention: {heads: 4, kv_heads: 2}"),
                        {.tensor = 2,
                         .batch = {2, kLength, 2},
                         .trainer = {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 3e-3},
                                     .total_steps = 4,
                                     .telemetry_every = telemetry_every}});
    TroubleAt hook(troubled);
    training.trainer->add(hook);
    training.go();
    return hook.reports;
  };
  const auto every = run(1, 0), seldom = run(100, 3);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(seldom[i].largest_logit, every[i].largest_logit) << i;
    EXPECT_EQ(seldom[i].logit_bound, every[i].logit_bound) << i;
    EXPECT_EQ(seldom[i].loss, every[i].loss) << i;
    EXPECT_EQ(seldom[i].entropy.empty(), i == 1 || i == 3) << i;
  }
  EXPECT_EQ(seldom[2].q_gain, every[3].q_gain);
  EXPECT_EQ(seldom[2].k_gain, every[3].k_gain);
  EXPECT_EQ(seldom[2].logit_scale, every[3].logit_scale);
  EXPECT_NE(seldom[2].q_gain, every[2].q_gain);
  ASSERT_EQ(seldom[2].entropy.size(), every[2].entropy.size());
  EXPECT_NE(seldom[2].entropy, every[2].entropy);
  for (size_t head = 0; head < every[2].entropy.size(); ++head)  // of the same batch
    EXPECT_NEAR(seldom[2].entropy[head], every[2].entropy[head], 0.02 * every[2].entropy[head]);
}

}  // namespace
}  // namespace keel::testing
