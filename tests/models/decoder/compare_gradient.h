// A gradient that lies in shards over the ranks against a logical one.
#pragma once

#include <cmath>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/nn/parameter.h"
#include "tests/support/device.h"

namespace keel::testing {

struct Distance {
  double difference = 0, size = 0;  // norms
};

// Every rank's shard against the same region of the logical golden gradient, over all ranks, by norm; elements that
// several ranks hold weigh one over their number. Rows beyond the golden tensor are padding and must be 0.
inline Distance compare(comm::Communicator& world, const nn::Parameter& parameter, const std::vector<double>& golden) {
  Distance d;
  const std::vector<float> gradient = host_values(parameter.gradient);
  nn::for_each_run(parameter, [&](int64_t logical, int64_t local, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const double expected = logical + i < int64_t(golden.size()) ? golden[size_t(logical + i)] : 0;
      const double difference = double(gradient[size_t(local + i)]) - expected;
      d.difference += difference * difference;
      d.size += expected * expected;
    }
  });
  const double copies = double(world.size() * parameter.local.elements()) / double(parameter.spec.shape.elements());
  return {std::sqrt(comm::all_reduce_value(world, d.difference) / copies),
          std::sqrt(comm::all_reduce_value(world, d.size) / copies)};
}

}  // namespace keel::testing
