// Every layer split over the ranks of the test against the same layer on one rank: what it makes, the gradient of its
// input, and the gradient of each parameter as every rank holds it (CASES R71; R01, R02, R03, R11 and R72 layer by
// layer). The layers and their placements are those of a decoder of one block.
#include <gtest/gtest.h>

#include "tests/models/decoder/module_case.h"

namespace keel::testing {
namespace {

struct Variant {
  const char* name;
  const char* text;
};

// Norms of both scopes and every kind of gain; KV heads cut, and held by two and four ranks; biases; scales.
const Variant kVariants[] = {
    {"HeadShared", "attention: {heads: 8, kv_heads: 4, qk_norm: {weight: shared}}"},
    {"HeadSharedOneKv", "attention: {heads: 4, kv_heads: 1, head_dim: 6, qk_norm: {weight: shared}}"},
    {"HeadPerHeadTwoKv", "attention: {heads: 8, kv_heads: 2, logit_scale: {kind: per_layer}}"},
    {"HeadNoGains", "attention: {heads: 4, kv_heads: 4, qk_norm: {kind: l2, weight: none}}"},
    {"FullRms", "attention: {heads: 8, kv_heads: 4, qk_norm: {scope: full}}"},
    {"FullRmsTwoKv", "attention: {heads: 8, kv_heads: 2, qk_norm: {scope: full, placement: after_rope}}"},
    {"FullL2OneKv", "attention: {heads: 4, kv_heads: 1, qk_norm: {kind: l2, scope: full}}"},
    {"FullLayerOneKv", "attention: {heads: 4, kv_heads: 1, qk_norm: {kind: layer, scope: full}}"},
    {"FullLayer", "attention: {heads: 4, kv_heads: 4, qk_norm: {kind: layer, scope: full}}, norm: {placement: post}"},
    {"NoneBiases",
     "attention: {heads: 4, kv_heads: 2, bias: {qkv: true, output: true}, qk_norm: {kind: none}}, mlp: {kind: gelu, "
     "bias: true}, norm: {kind: layer}"},
    {"SandwichGeglu", "attention: {heads: 4, kv_heads: 2}, mlp: {kind: geglu}, norm: {placement: sandwich}"},
    {"ParallelTied",
     "attention: {heads: 4, kv_heads: 1}, parallel_block: true, tie_embeddings: true, embedding_scale: sqrt_hidden, "
     "final_softcap: 5, positions: {learned: true, max_positions: 16}"},
};

class ModuleParity : public ::testing::TestWithParam<Variant> {
 protected:
  ModuleParity()
      : world(device_world()),
        self(comm::make_self_communicator()),
        config(models::read_decoder_config(config::parse(
            fmt::format("{{kind: decoder, vocab: 50, hidden: 32, layers: 1, ffn: 24, {}}}", GetParam().text), "test"))),
        whole(*self, config),
        split(*world, config) {}

  // `module` runs one layer forward and backward.
  template <class Module>
  void expect_parity(Module module) {
    const Outcome expected = module(whole), own = module(split);
    split.finish_gradients();
    for (const auto& [name, made] : own) {
      const Made& one = expected.at(name);
      EXPECT_GT(norm_of(one.values), 0) << name;
      EXPECT_TRUE(near_by_norm(made.values, columns_of(one.values, one.columns, made.ranges), 0,
                               kFloat32 * norm_of(one.values)))
          << name;
    }
    expect_same_gradients();
  }

  void expect_same_gradients() {
    double squares = 0;
    for (const nn::Parameter& parameter : whole.decoder.parameters().all())
      squares += std::pow(norm_of(to_doubles(parameter.gradient)), 2);
    for (const nn::Parameter& parameter : split.decoder.parameters().all()) {
      const Values all = to_doubles(whole.decoder.parameters().at(parameter.spec.name).gradient);
      Values expected(size_t(parameter.local.elements()));
      nn::for_each_run(parameter, [&](int64_t logical, int64_t local, int64_t count) {
        std::copy_n(all.begin() + logical, count, expected.begin() + local);
      });
      EXPECT_TRUE(near_by_norm(parameter.gradient, expected, 0, kFloat32 * norm_of(all) + 1e-9 * std::sqrt(squares)))
          << parameter.spec.name;
    }
  }

  std::unique_ptr<comm::Communicator> world, self;
  const models::DecoderConfig config;
  Modules whole, split;
};

Made made(const Tensor& values, int64_t columns, const Ranges& ranges) {
  return {to_doubles(values), columns, ranges};
}
Made made(const Tensor& values) {
  return made(values, values.size(1), {{0, values.size(1)}});
}

TEST_P(ModuleParity, Embedding) {
  std::vector<int32_t> ids(Modules::kRows);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i * 11 % 50);
  expect_parity([&](Modules& m) {
    const DeviceTensor tokens = device_tensor(ids);
    const Tensor x = m.take(Modules::kRows, m.hidden());
    m.decoder.embedding().forward(x, tokens, m.places(), m.context);
    m.decoder.embedding().backward(m.random(m.hidden(), 1), tokens, m.places());
    return Outcome{{"x", made(x)}};
  });
}

TEST_P(ModuleParity, QkvColumnParallel) {
  expect_parity([](Modules& m) {
    nn::ColumnParallelLinear& qkv = m.block().attention.qkv;
    const int64_t columns = m.query_width() + 2 * m.key_width();
    const Tensor x = m.random(m.hidden(), 1), dx = m.take(Modules::kRows, m.hidden());
    const Tensor y = m.take(Modules::kRows, width_of(m.qkv()));
    const int64_t q = width_of(m.queries()), k = width_of(m.keys());
    qkv.forward(y, x);
    qkv.backward(dx, m.random(columns, 2, m.qkv(), m.shares(q, 2 * k)), x, m.context);
    return Outcome{{"y", made(y, columns, m.qkv())}, {"dx", made(dx)}};
  });
}

TEST_P(ModuleParity, OutputRowParallel) {
  expect_parity([](Modules& m) {
    nn::RowParallelLinear& output = m.block().attention.output;
    const Tensor x = m.random(m.query_width(), 1, m.queries()), dx = m.take(Modules::kRows, width_of(m.queries()));
    const Tensor y = m.take(Modules::kRows, m.hidden());
    output.forward(y, x, m.context);
    output.backward(dx, m.random(m.hidden(), 2), x);
    return Outcome{{"y", made(y)}, {"dx", made(dx, m.query_width(), m.queries())}};
  });
}

TEST_P(ModuleParity, QkNorm) {
  expect_parity([](Modules& m) {
    const nn::QkNorm& norm = m.block().attention.qk_norm;
    const int64_t n = Modules::kRows, d = m.decoder.config().head_dim();
    const int64_t q_own = width_of(m.queries()), k_own = width_of(m.keys());
    const Tensor qkv = m.random(m.query_width() + 2 * m.key_width(), 1, m.qkv());
    const Tensor q = m.take(n, q_own), k = m.take(n, k_own), d_qkv = m.random(width_of(m.qkv()), 2);
    const Tensor dq = m.random(m.query_width(), 3, m.queries());
    const Tensor dk = m.random(m.key_width(), 4, m.keys(), m.shares(0, k_own));
    auto heads = [&](const Tensor& x) { return x.reshaped({n, x.size(1) / d, d}); };
    nn::QkNorm::Saved saved;
    norm.forward({heads(q), heads(k)}, {qkv, m.positions()}, saved, m.context);
    norm.backward(d_qkv, {heads(dq), heads(dk)}, {qkv, m.positions()}, saved, m.context);
    Made of_k{m.summed_over_replicas(to_doubles(d_qkv.slice(1, q_own, q_own + k_own))), m.key_width(), m.keys()};
    return Outcome{{"q", made(q, m.query_width(), m.queries())},
                   {"k", made(k, m.key_width(), m.keys())},
                   {"dq", made(d_qkv.slice(1, 0, q_own), m.query_width(), m.queries())},
                   {"dk", of_k}};
  });
}

TEST_P(ModuleParity, Attention) {
  expect_parity([](Modules& m) {
    const nn::Attention& attention = m.block().attention;
    const Tensor x = m.random(m.hidden(), 1), dy = m.random(m.hidden(), 2);
    const Tensor y = m.take(Modules::kRows, m.hidden()), dx = m.take(Modules::kRows, m.hidden());
    const Tensor largest = m.take(1, attention.heads()), entropy = m.take(1, attention.heads());
    const Shape heads = {attention.heads()};
    set_values(largest, Values(size_t(attention.heads())));
    set_values(entropy, Values(size_t(attention.heads())));
    nn::Attention::Saved saved;
    const nn::Attention::Inputs in{
        m.positions(), Modules::kBatch, {.largest_logit = largest.reshaped(heads), .entropy = entropy.reshaped(heads)}};
    attention.forward(y, x, in, saved, m.context);
    attention.backward(dx, dy, in, saved, m.context);
    const int64_t H = m.decoder.config().attention.heads, first = m.mesh().tensor().rank() * attention.heads();
    const Ranges own = {{first, first + attention.heads()}};
    return Outcome{
        {"y", made(y)}, {"dx", made(dx)}, {"largest", made(largest, H, own)}, {"entropy", made(entropy, H, own)}};
  });
}

TEST_P(ModuleParity, FeedForward) {
  expect_parity([](Modules& m) {
    const nn::FeedForward& mlp = m.block().mlp;
    const Tensor x = m.random(m.hidden(), 1), dy = m.random(m.hidden(), 2);
    const Tensor y = m.take(Modules::kRows, m.hidden()), dx = m.take(Modules::kRows, m.hidden());
    nn::FeedForward::Saved saved;
    mlp.forward(y, x, saved, m.context);
    mlp.backward(dx, dy, x, saved, m.context);
    return Outcome{{"y", made(y)}, {"dx", made(dx)}};
  });
}

// Its norms too: their gradients are whole on every rank, and nobody may sum them again.
TEST_P(ModuleParity, Block) {
  expect_parity([](Modules& m) {
    const nn::TransformerBlock& block = m.block();
    nn::ResidualStream stream{m.random(m.hidden(), 1), m.random(m.hidden(), 2), true};
    const nn::TransformerBlock::Inputs inputs{m.positions(), Modules::kBatch, {}};
    nn::TransformerBlock::Saved saved;
    block.forward(stream, inputs, saved, m.context);
    const Tensor residual = m.take(Modules::kRows, m.hidden()), branch = m.take(Modules::kRows, m.hidden());
    set_values(residual, to_doubles(stream.residual));
    set_values(branch, to_doubles(stream.branch));
    const Tensor d = m.random(m.hidden(), 3);
    block.backward(d, inputs, saved, {m.take(Modules::kRows, m.hidden()), m.take(Modules::kRows, m.hidden())},
                   m.context);
    return Outcome{{"residual", made(residual)}, {"branch", made(branch)}, {"d", made(d)}};
  });
}

TEST_P(ModuleParity, Classifier) {
  std::vector<int32_t> targets(Modules::kRows);
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = i % 5 == 0 ? -1 : int32_t(i * 17 % 50);
  expect_parity([&](Modules& m) {
    const Tensor x = m.random(m.hidden(), 1), dx = m.take(Modules::kRows, m.hidden());
    const DeviceTensor wanted = device_tensor(targets), factor = device_tensor(std::vector<float>{0.25f});
    const DeviceTensor on_device({4}, DType::f64);
    const nn::LossOptions options{.z_loss = 1e-2, .label_smoothing = 0.1};
    m.decoder.classifier().forward_backward(on_device, dx, {x, wanted, factor}, options, m.context);
    const ops::CrossEntropySums sums = DecoderCase::sums_of(on_device);
    EXPECT_EQ(sums.counted, 11);
    EXPECT_EQ(sums.finite, 11);
    return Outcome{{"dx", made(dx)}, {"loss", {{sums.loss, sums.z_loss}, 2, {{0, 2}}}}};
  });
}

INSTANTIATE_TEST_SUITE_P(Variants, ModuleParity, ::testing::ValuesIn(kVariants),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace keel::testing
