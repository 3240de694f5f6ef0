// A training state without a model: parameters of every placement, an optimizer, and values that say where they belong.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "checkpoints/reader.h"
#include "checkpoints/writer.h"
#include "framework/base/rng.h"
#include "framework/parallel/data_parallel.h"

namespace keel::checkpoints {

struct Layout {
  int tensor = 1, data = 1;
  bool zero = true;
  int ranks() const { return tensor * data; }
  std::string name() const { return fmt::format("{} x {}{}", tensor, data, zero ? " ZeRO" : ""); }
};

// What element `index` of a logical tensor holds. Moments have one that bf16 and half precision would round (CASES
// R30).
inline float expected_value(TensorKind kind, const std::string& name, int64_t index) {
  if (kind == TensorKind::moment1 && index == 0) return 1 + 0x1p-12f;
  return float(uniform(key_of(uint64_t(kind), name), uint64_t(index)) - 0.5);
}

using Declare = void (*)(nn::ParameterSet& parameters, int tensor);

inline void declare_one(nn::ParameterSet& parameters, const char* name, Shape shape, nn::Placement placement = {},
                        bool decayed = true) {
  parameters.declare({.name = name, .shape = shape, .decayed = decayed, .product = decayed}).placement = placement;
}

// q, k, v and gate, up side by side, KV heads fewer than ranks, shards of every dim, odd sizes, one and many tiles.
inline void declare_all(nn::ParameterSet& parameters, int tensor) {
  using nn::Placement;
  const int kv_replicas = tensor > 2 ? tensor / 2 : 1;  // of two KV heads
  declare_one(parameters, "embedding.weight", {12, 5}, Placement::sharded(0));
  declare_one(parameters, "attention.q.weight", {16, 6}, Placement::sharded(0));
  declare_one(parameters, "attention.k.weight", {8, 6}, Placement::sharded(0, kv_replicas));
  declare_one(parameters, "attention.v.weight", {8, 6}, Placement::sharded(0, kv_replicas));
  declare_one(parameters, "attention.one_kv_head.weight", {3, 7}, Placement::sharded(0, tensor));
  declare_one(parameters, "attention.out.weight", {6, 16}, Placement::sharded(1));
  declare_one(parameters, "attention.q_norm.weight", {4, 3}, Placement::sharded(0), false);
  declare_one(parameters, "attention.k_norm.weight", {3}, Placement::partial(), false);
  declare_one(parameters, "mlp.gate.weight", {8, 5}, Placement::sharded(0));
  declare_one(parameters, "mlp.up.weight", {8, 5}, Placement::sharded(0));
  declare_one(parameters, "mlp.down.weight", {5, 8}, Placement::sharded(1));
  declare_one(parameters, "norm.weight", {7}, Placement::whole(), false);
  declare_one(parameters, "two_rows", {2, 3});
  declare_one(parameters, "one", {1}, Placement::whole(), false);
  declare_one(parameters, "long_rows", {3, 41}, Placement::partial());
  declare_one(parameters, "tall", {137, 3});
  declare_one(parameters, "cube", {3, 4, 5}, Placement::sharded(1));
}

class State {
 public:
  State(comm::Communicator& world, const Layout& layout, Declare declare = declare_all)
      : mesh(world, layout.tensor), layout_(layout) {
    declare(parameters, layout.tensor);
    // Buckets that end within parameters.
    parameters.allocate(
        {.tensor = mesh.tensor_position(), .data_ranks = mesh.data().size(), .bucket_elements = int64_t(64)});
    data_parallel = std::make_unique<parallel::DataParallel>(parameters, mesh, layout.zero);
    optimizer = std::make_unique<optim::Adamw>(parameters, data_parallel->update_spans(), ops::AdamwOptions());
  }

  LocalTensors tensors() {
    return {.parameters = parameters,
            .optimizer = optimizer.get(),
            .data_replica = !layout_.zero && mesh.data().rank() != 0};
  }

  // Right values where this rank's are up to date; elsewhere (weights that another data rank updates, padding) garbage.
  void fill() {
    for (nn::ParameterArena& arena : parameters.arenas()) std::fill_n(arena.master.as<float>(), arena.elements, -77.f);
    for_each_held([](float& value, float expected) { value = expected; });
  }
  // Every weight of the shard, every moment of the spans, bit by bit. How many elements are wrong.
  int64_t wrong() {
    int64_t wrong = 0, seen = 0;
    for_each_wanted([&](float& value, float expected) {
      wrong += std::memcmp(&value, &expected, sizeof value) != 0;
      ++seen;
    });
    return seen > 0 ? wrong : -1;
  }
  void clear() {
    for (nn::ParameterArena& arena : parameters.arenas()) std::fill_n(arena.master.as<float>(), arena.elements, NAN);
    for (size_t i = 0; i < optimizer->spans().size(); ++i)
      for (const Tensor& moment : {optimizer->moment1(i), optimizer->moment2(i)})
        std::fill_n(moment.as<float>(), moment.elements(), NAN);
  }

  parallel::Mesh mesh;
  nn::ParameterSet parameters;
  std::unique_ptr<parallel::DataParallel> data_parallel;
  std::unique_ptr<optim::Adamw> optimizer;

 private:
  // f(logical index) of each element of the shard by its place in the arena, without Keel's for_each_run.
  template <class F>
  void for_each_element(const nn::Parameter& parameter, F f) {
    const Shape &local = parameter.local, &logical = parameter.spec.shape;
    for (int64_t i = 0; i < local.elements(); ++i) {
      int64_t rest = i, index = 0, stride = 1;
      for (int dim = local.dims() - 1; dim >= 0; --dim) {
        int64_t at = rest % local[dim];
        rest /= local[dim];
        const bool cut = parameter.placement.kind == nn::Placement::Kind::shard && dim == parameter.placement.dim;
        if (cut) at += parameter.tensor.index / parameter.placement.replicas * local[dim];
        index += at * stride;
        stride *= logical[dim];
      }
      f(i, index);
    }
  }
  template <class F>
  void for_each(F f, bool stale_too) {
    for (const nn::Parameter& parameter : parameters.all()) {
      float* arena = parameters.arenas()[size_t(parameter.arena)].master.as<float>();
      const std::string& name = parameter.spec.name;
      for_each_element(parameter, [&](int64_t local, int64_t logical) {
        const int64_t place = parameter.offset_elements + local;
        if (stale_too) f(arena[place], expected_value(TensorKind::weight, name, logical));
        for (size_t i = 0; i < optimizer->spans().size(); ++i) {
          const nn::ArenaRange& span = optimizer->spans()[i];
          if (span.arena != parameter.arena || place < span.begin || place >= span.end) continue;
          if (!stale_too) f(arena[place], expected_value(TensorKind::weight, name, logical));
          f(optimizer->moment1(i).as<float>()[place - span.begin], expected_value(TensorKind::moment1, name, logical));
          f(optimizer->moment2(i).as<float>()[place - span.begin], expected_value(TensorKind::moment2, name, logical));
        }
      });
    }
  }
  template <class F>
  void for_each_held(F f) {
    for_each(f, false);
  }
  template <class F>
  void for_each_wanted(F f) {
    for_each(f, true);
  }

  Layout layout_;
};

inline RunState some_run_state() {
  RunState state{
      .config = "name: x\n", .environment = "{}", .data_fingerprint = "data", .qk_norm = "rms", .hooks = "{}"};
  state.progress.step = 40;
  state.progress.updates = 37;
  state.progress.tokens_consumed = int64_t(3) << 33;
  std::vector<int64_t> taken(10);
  state.progress.samples.take(taken);
  state.progress.samples.leave_out({15, 20});
  return state;
}

}  // namespace keel::checkpoints
