// A decoder on this rank of the world's tensor group, its parameters set by the golden files' formula, and one batch.
#pragma once

#include <mpi.h>

#include <cmath>
#include <vector>

#include "framework/base/rng.h"
#include "framework/comm/mpi.h"
#include "framework/parallel/data_parallel.h"
#include "framework/parallel/tensor_parallel.h"
#include "models/decoder/decoder.h"

namespace keel::testing {

// base + amplitude * sin(1 + 12.9898 i + 0.61 s), s the sum of the name's bytes: tests/golden/README.md.
inline double golden_value(const std::string& name, int64_t index, double amplitude, bool zero_centered) {
  const bool scale = name.ends_with("logit_scale.weight"), gain = name.ends_with("norm.weight") || scale;
  double sum = 0;
  for (unsigned char c : name) sum += c;
  const double base = gain && (scale || !zero_centered) ? 1 : 0;
  return base + (gain ? 0.2 : amplitude) * std::sin(1 + 12.9898 * double(index) + 0.61 * sum);
}

// Random values, normal: gains and scales around 1, the others around 0. (golden_value makes matrices of rank 2, whose
// products cancel: fine for exact references, but two orders of the same sums then differ by more than 1e-5.)
inline double random_value(const std::string& name, int64_t index) {
  const double noise = inverse_normal(uniform(key_of(1, name), uint64_t(index)));
  return name.ends_with("norm.weight") || name.ends_with("logit_scale.weight") ? 1 + 0.2 * noise : 0.2 * noise;
}

struct Ids {
  std::vector<int32_t> tokens, targets, positions, first_key;
  int64_t B = 0, T = 0;
  bool documents = false;

  nn::TokenBatch batch() {
    auto part = [&](std::vector<int32_t>& values) { return Tensor(values.data(), {B, T}, DType::i32); };
    return {part(tokens), part(targets), part(positions), documents ? part(first_key) : Tensor()};
  }
};

// The tensor group is the whole world.
class DecoderCase {
 public:
  DecoderCase(comm::Communicator& world, const models::DecoderConfig& config, DType activation, nn::BatchShape batch)
      : mesh_(world, world.size()), group_(mesh_.tensor()), decoder(config) {
    decoder.allocate(
        {.parameters = {.device = {}, .activation = activation, .tensor = mesh_.tensor_position(), .data_ranks = 1},
         .group = &group_,
         .batch = batch,
         .training = true});
    reducer_.emplace(decoder.parameters(), mesh_, false);
  }

  template <class F>
  void set_parameters(F value_of) {
    for (nn::Parameter& parameter : decoder.parameters().all())
      nn::for_each_run(parameter, [&](int64_t logical, int64_t local, int64_t count) {
        for (int64_t i = 0; i < count; ++i)
          parameter.master.as<float>()[local + i] = float(value_of(parameter.spec.name, logical + i));
      });
    decoder.parameters().round_to_compute();
    decoder.refresh();
  }

  ops::CrossEntropySums step(Ids& ids, const nn::LossOptions& loss) {
    double counted = 0;
    for (int32_t target : ids.targets) counted += target >= 0;
    decoder.parameters().zero_gradients();
    decoder.begin_step();
    auto sums = decoder.forward_backward(
        ids.batch(), {.factor = float(1 / counted), .loss = loss, .telemetry = true, .gradients_complete = {}});
    reducer_->finish_gradients();
    return sums;
  }

  // What `step` does after its backward, for tests that call layers one by one.
  void finish_gradients() { reducer_->finish_gradients(); }
  double gradient_norm() { return reducer_->gradient_norm(); }
  parallel::Mesh& mesh() { return mesh_; }
  nn::TensorGroup& group() { return group_; }

 private:
  parallel::Mesh mesh_;
  parallel::TensorParallel group_;
  std::optional<parallel::DataParallel> reducer_;

 public:
  models::Decoder decoder;
};

}  // namespace keel::testing
