#include "launch/bench/bench_passes.h"

#include "framework/base/clock.h"
#include "framework/base/rng.h"
#include "framework/lab/statistics.h"
#include "framework/ops/attention/attention.h"
#include "framework/ops/elementwise.h"
#include "framework/ops/qk_norm/rope_table.h"
#include "framework/tensor/copy.h"
#include "framework/tensor/dispatch.h"

namespace keel {
namespace {

// Tensors of one layer: the QKV product, q and k in attention's layout, and what backward needs.
struct Layer {
  explicit Layer(BenchedStep& step)
      : attention(step.decoder.blocks()[0]->attention),
        B(step.sizes().micro_sequences),
        T(step.sizes().length),
        H(attention.heads()),
        G(attention.kv_heads()),
        d(attention.spec.head_dim),
        type(step.activation()),
        device(step.device()),
        qkv({B * T, (H + 2 * G) * d}, type, device),
        d_qkv({B * T, (H + 2 * G) * d}, type, device),
        q({B * T, H, d}, type, device),
        k({B * T, G, d}, type, device),
        rope({T, attention.qk_norm.pass().rotated}, DType::f32, device),
        rows({B * T}, DType::i32, device),
        saved(device, bytes_of_sums(step, 1)),
        scratch(device, bytes_of_sums(step, step.group().size())),
        context{saved, scratch, type, &step.group(), device.kind} {
    ops::rope_table(rope, step.decoder.config().rope.theta);
    const HostTensor places(rows), values(qkv);
    for (int64_t i = 0; i < B * T; ++i) places.tensor().as<int32_t>()[i] = int32_t(i % T);
    dispatch_float(type, [&]<class E>() {
      for (int64_t i = 0; i < qkv.tensor.elements(); ++i)
        values.tensor().as<E>()[i] = E(float(uniform(3, uint64_t(i)) - 0.5));
    });
    places.put_back();
    values.put_back();
  }

  // Room for the sums over heads that scope full exchanges: at most four numbers of a token from each rank.
  static int64_t bytes_of_sums(const BenchedStep& step, int64_t ranks) {
    constexpr int64_t kAlignment_bytes = 4096;
    return (ranks + 1) * step.sizes().shape().tokens() * 4 * int64_t(sizeof(float)) + kAlignment_bytes;
  }
  nn::Positions positions() const { return {rows, rope, {}}; }

  const nn::Attention& attention;
  int64_t B, T, H, G, d;
  DType type;
  Device device;
  OwnedTensor qkv, d_qkv, q, k, rope, rows;
  Arena saved, scratch;
  nn::Context context;
};

// The two in turn, so that both see the same machine.
template <class With, class Without>
PassSeconds in_turn(Device device, const With& with, const Without& without) {
  constexpr int kRounds = 15;
  std::vector<double> times[2];
  auto time = [&](std::vector<double>& seconds, const auto& pass) {
    Stopwatch watch;
    pass();
    Stream::current(device).synchronize();
    seconds.push_back(watch.lap());
  };
  for (int round = 0; round < kRounds; ++round) {
    time(times[0], with);
    time(times[1], without);
  }
  return {lab::median(times[0]), lab::median(times[1])};
}

}  // namespace

PassSeconds qk_norm_pass(BenchedStep& step, BenchedStep& plain) {
  Layer layer(step);
  const auto pass = [&](const nn::QkNorm& norm) {
    layer.saved.reset();
    nn::QkNorm::Saved saved;
    norm.forward({layer.q, layer.k}, {layer.qkv, layer.positions()}, saved, layer.context);
    norm.backward(layer.d_qkv, {layer.q, layer.k}, {layer.qkv, layer.positions()}, saved, layer.context);
  };
  return in_turn(
      layer.device, [&] { pass(layer.attention.qk_norm); },
      [&] { pass(plain.decoder.blocks()[0]->attention.qk_norm); });
}

PassSeconds telemetry_pass(BenchedStep& step) {
  Layer layer(step);
  const int64_t B = layer.B, T = layer.T, H = layer.H, G = layer.G, d = layer.d;
  const nn::QkNorm& norm = layer.attention.qk_norm;
  nn::QkNorm::Saved saved;
  norm.forward({layer.q, layer.k}, {layer.qkv, layer.positions()}, saved, layer.context);
  auto floats = [&](const Shape& shape) { return OwnedTensor(shape, DType::f32, layer.device); };
  OwnedTensor out({B, T, H, d}, layer.type, layer.device), log_sum_exp = floats({B, H, T}), largest = floats({H}),
                                                           entropy = floats({H}), q_squares = floats({H}),
                                                           k_squares = floats({G}), scale = floats({H});
  OwnedTensor place({H}, DType::i64, layer.device);
  ops::fill(scale, float(layer.attention.spec.initial_scale));
  const ops::AttentionInputs inputs{.q = layer.q.tensor.reshaped({B, T, H, d}),
                                    .k = layer.k.tensor.reshaped({B, T, G, d}),
                                    .v = layer.qkv.tensor.reshaped({B, T, H + 2 * G, d}).slice(2, H + G, H + 2 * G),
                                    .scale = scale,
                                    .first_key = {}};
  const Shape rows = {B * T, step.decoder.config().hidden};
  const bool wide = step.decoder.config().residual == models::ResidualType::fp32;
  const OwnedTensor residual(rows, wide ? DType::f32 : layer.type, layer.device),
      branch(rows, layer.type, layer.device);
  models::TelemetrySamples samples({.layers = 1, .heads = H, .length = T, .device = layer.device});
  const auto forward = [&](bool telemetry) {
    zero(largest);
    if (telemetry) {
      ops::qk_add_mean_squares(q_squares, k_squares, layer.qkv, norm.pass());
      samples.look_at_heads(0, layer.q, layer.k, {}, layer.attention.spec.window);
    }
    ops::attention_forward(
        {out, log_sum_exp, largest, telemetry ? entropy.tensor : Tensor(), telemetry ? place.tensor : Tensor()}, inputs,
        {.causal = layer.attention.spec.causal,
         .window = layer.attention.spec.window,
         .softcap = float(layer.attention.spec.softcap)});
    if (telemetry) samples.look_at(0, {residual, branch, true});
  };
  return in_turn(
      layer.device, [&] { forward(true); }, [&] { forward(false); });
}

}  // namespace keel
