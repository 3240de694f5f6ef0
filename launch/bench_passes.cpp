#include "launch/bench_passes.h"

#include <algorithm>

#include "framework/base/rng.h"
#include "framework/ops/attention.h"
#include "framework/ops/elementwise.h"
#include "framework/tensor/copy.h"
#include "framework/tensor/dispatch.h"
#include "launch/bench_step.h"

namespace keel {
namespace {

// Tensors of one layer: the QKV product, q and k in attention's layout, and their gradients' places.
struct Layer {
  Layer(const FullConfig& config, const train::BatchSizes& sizes, Device device)
      : B(sizes.micro_sequences),
        T(sizes.length),
        H(config.model.attention.heads),
        G(config.model.kv_heads()),
        d(config.model.head_dim()),
        type(activation_type(config)),
        device(device),
        qkv({B * T, (H + 2 * G) * d}, type, device),
        d_qkv({B * T, (H + 2 * G) * d}, type, device),
        q({B * T, H, d}, type, device),
        k({B * T, G, d}, type, device),
        weight({d}, DType::f32, device),
        d_q({d}, DType::f32, device),
        d_k({d}, DType::f32, device),
        rope({T, config.model.rotated_features()}, DType::f32, device),
        positions({B * T}, DType::i32, device) {
    ops::rope_table(rope, config.model.rope.theta);
    ops::fill(weight, 1);
    const HostTensor places(positions), values(qkv);
    for (int64_t i = 0; i < B * T; ++i) places.tensor().as<int32_t>()[i] = int32_t(i % T);
    dispatch_float(type, [&]<class E>() {
      for (int64_t i = 0; i < qkv.tensor.elements(); ++i)
        values.tensor().as<E>()[i] = E(float(uniform(3, uint64_t(i)) - 0.5));
    });
    places.put_back();
    values.put_back();
  }

  ops::QkNormRopeOptions options(const FullConfig& config, ops::QkNormKind kind) const {
    return {.heads = H, .kv_heads = G, .head_dim = d, .rotated = config.model.rotated_features(), .kind = kind};
  }
  ops::QkNormRopeInputs inputs(bool gains) const {
    const Tensor gain = gains ? weight.tensor : Tensor();
    return {qkv, gain, gain, rope, positions};
  }

  int64_t B, T, H, G, d;
  DType type;
  Device device;
  OwnedTensor qkv, d_qkv, q, k, weight, d_q, d_k, rope, positions;
};

// The two in turn, so that both see the same machine.
template <class With, class Without>
PassSeconds in_turn(Device device, const With& with, const Without& without) {
  constexpr int kRounds = 15;
  std::vector<double> times[2];
  auto time = [&](std::vector<double>& seconds, const auto& pass) {
    const double begin = now_seconds();
    pass();
    Stream::current(device).synchronize();
    seconds.push_back(now_seconds() - begin);
  };
  for (int round = 0; round < kRounds; ++round) {
    time(times[0], with);
    time(times[1], without);
  }
  return {median(times[0]), median(times[1])};
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

PassSeconds qk_norm_pass(const FullConfig& config, const train::BatchSizes& sizes, Device device) {
  Layer layer(config, sizes, device);
  const auto pass = [&](ops::QkNormKind kind) {
    const bool gains = kind != ops::QkNormKind::none;
    const ops::QkNormRopeOptions options = layer.options(config, kind);
    const ops::QkNormRopeInputs inputs = layer.inputs(gains);
    ops::qk_norm_rope_forward(layer.q, layer.k, inputs, {}, options);
    ops::qk_norm_rope_backward({layer.d_qkv, gains ? layer.d_q.tensor : Tensor(), gains ? layer.d_k.tensor : Tensor()},
                               layer.q, layer.k, inputs, {}, {}, options);
  };
  const ops::QkNormKind kind = config.model.attention.qk_norm.kind;
  return in_turn(
      device, [&] { pass(kind); }, [&] { pass(ops::QkNormKind::none); });
}

PassSeconds telemetry_pass(const FullConfig& config, const train::BatchSizes& sizes, Device device) {
  Layer layer(config, sizes, device);
  const int64_t B = layer.B, T = layer.T, H = layer.H, G = layer.G, d = layer.d;
  const ops::QkNormRopeOptions options = layer.options(config, config.model.attention.qk_norm.kind);
  ops::qk_norm_rope_forward(layer.q, layer.k, layer.inputs(options.kind != ops::QkNormKind::none), {}, options);
  auto floats = [&](const Shape& shape) { return OwnedTensor(shape, DType::f32, device); };
  OwnedTensor out({B, T, H, d}, layer.type, device), log_sum_exp = floats({B, H, T}), largest = floats({H}),
                                                     entropy = floats({H}), q_squares = floats({H}),
                                                     k_squares = floats({G}), scale = floats({H});
  OwnedTensor place({H}, DType::i64, device);
  ops::fill(scale, float(config.model.initial_scale(0)));
  const ops::AttentionInputs inputs{.q = layer.q.tensor.reshaped({B, T, H, d}),
                                    .k = layer.k.tensor.reshaped({B, T, G, d}),
                                    .v = layer.qkv.tensor.reshaped({B, T, H + 2 * G, d}).slice(2, H + G, H + 2 * G),
                                    .scale = scale,
                                    .first_key = {}};
  const auto attend = [&](bool telemetry) {
    zero(largest);
    if (telemetry) ops::qk_add_mean_squares(q_squares, k_squares, layer.qkv, options);
    ops::attention_forward({out, log_sum_exp, largest, entropy, telemetry ? place.tensor : Tensor()}, inputs,
                           {.want_entropy = telemetry});
  };
  return in_turn(
      device, [&] { attend(true); }, [&] { attend(false); });
}

}  // namespace keel
