// A decoder on this rank of the world's tensor group and the device under test, its parameters set by the golden files'
// formula, and one batch.
#pragma once

#include <cmath>
#include <deque>
#include <memory>
#include <vector>

#include "framework/base/rng.h"
#include "framework/parallel/data_parallel.h"
#include "framework/parallel/tensor_parallel.h"
#include "models/decoder/decoder.h"
#include "tests/support/device.h"
#include "tests/support/device_world.h"

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

  // Views of copies that live until the next call.
  nn::TokenBatch batch() {
    there_ = std::make_shared<std::deque<DeviceTensor>>();
    auto part = [&](const std::vector<int32_t>& values) {
      there_->push_back(device_tensor(values));
      return there_->back().tensor.reshaped({B, T});
    };
    nn::TokenBatch batch{part(tokens), part(targets), part(positions), {}};
    if (documents) batch.first_key = part(first_key);
    return batch;
  }

  std::shared_ptr<std::deque<DeviceTensor>> there_;
};

// The tensor group is the whole world.
class DecoderCase {
 public:
  DecoderCase(comm::Communicator& world, const models::DecoderConfig& config, DType activation, nn::BatchShape batch)
      : mesh_(world, world.size()), group_(mesh_.tensor()), decoder(config) {
    decoder.allocate({.parameters = {.device = test_device(),
                                     .activation = activation,
                                     .tensor = mesh_.tensor_position(),
                                     .data_ranks = 1},
                      .group = &group_,
                      .batch = batch,
                      .training = true});
    reducer_.emplace(decoder.parameters(), mesh_, false);
  }

  template <class F>
  void set_parameters(F value_of) {
    for (nn::Parameter& parameter : decoder.parameters().all()) {
      const HostTensor host(parameter.master);
      nn::for_each_run(parameter, [&](int64_t logical, int64_t local, int64_t count) {
        for (int64_t i = 0; i < count; ++i)
          host.tensor().as<float>()[local + i] = float(value_of(parameter.spec.name, logical + i));
      });
      host.put_back();
    }
    decoder.parameters().round_to_compute();
    decoder.refresh();
  }

  ops::CrossEntropySums step(Ids& ids, const nn::LossOptions& loss) {
    double counted = 0;
    for (int32_t target : ids.targets) counted += target >= 0;
    decoder.parameters().zero_gradients();
    decoder.begin_step();
    const ops::CrossEntropySums sums = micro_step(ids, float(1 / counted), loss);
    reducer_->finish_gradients();
    return sums;
  }
  ops::CrossEntropySums micro_step(Ids& ids, float factor, const nn::LossOptions& loss) {
    const DeviceTensor sums({4}, DType::f64), factors = device_tensor(std::vector<float>{factor});
    decoder.forward_backward(sums, ids.batch(),
                             {.factor = factors, .loss = loss, .telemetry = true, .gradients_complete = {}});
    return sums_of(sums);
  }
  static ops::CrossEntropySums sums_of(const ConstTensor& sums) {
    return ops::CrossEntropySums::of(host_values<double>(sums).data());
  }

  // What `step` does after its backward, for tests that call layers one by one.
  void finish_gradients() { reducer_->finish_gradients(); }
  double gradient_norm() {
    const DeviceTensor squares({1}, DType::f64);
    reducer_->gradient_squares(squares);
    return std::sqrt(host_values<double>(squares)[0]);
  }
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
