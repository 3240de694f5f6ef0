// The layers of a decoder of one block, called one by one on this rank, with inputs that are the same logical values
// however the layers are split.
#pragma once

#include <map>

#include "framework/ops/qk_norm/rope_table.h"
#include "tests/models/decoder/decoder_case.h"
#include "tests/support/compare.h"

namespace keel::testing {

// [begin, end) of the logical columns that this rank holds, in its order.
using Ranges = std::vector<std::pair<int64_t, int64_t>>;

inline int64_t width_of(const Ranges& ranges) {
  int64_t width = 0;
  for (auto [begin, end] : ranges) width += end - begin;
  return width;
}

// Those columns of x [rows, columns].
inline Values columns_of(const Values& x, int64_t columns, const Ranges& ranges) {
  Values part;
  for (auto row = x.begin(); row < x.end(); row += columns)
    for (auto [begin, end] : ranges) part.insert(part.end(), row + begin, row + end);
  return part;
}

// What a layer makes or hands back: this rank's columns of a logical [rows, columns].
struct Made {
  Values values;
  int64_t columns = 0;
  Ranges ranges;
};
using Outcome = std::map<std::string, Made>;

class Modules : public DecoderCase {
 public:
  static constexpr nn::BatchShape kBatch{2, 7};
  static constexpr int64_t kRows = 14;

  Modules(comm::Communicator& ranks, const models::DecoderConfig& config)
      : DecoderCase(ranks, config, DType::f32, kBatch),
        arena_(test_device(), 8 << 20),
        scratch_(test_device(), 8 << 20),
        context{arena_, scratch_, DType::f32, &group()} {
    set_parameters(random_value);
    decoder.parameters().zero_gradients();
    // The second row of the batch holds two documents.
    std::vector<int32_t> places, first_key;
    for (int32_t i = 0; i < kRows; ++i) {
      const int32_t t = i % 7, start = i >= 10 ? 3 : 0;
      places.push_back(t - start);
      first_key.push_back(start);
    }
    places_ = device_tensor(places);
    first_key_ = device_tensor(first_key);
    if (config.rotated_features() == 0) return;
    rope_ = take(kBatch.length, config.rotated_features());
    ops::rope_table(rope_, 100);
  }

  nn::TransformerBlock& block() { return *decoder.blocks()[0]; }
  nn::Positions positions() { return {places(), rope_, first_key_.tensor.reshaped({kBatch.sequences, kBatch.length})}; }
  Tensor places() { return places_; }

  Tensor take(int64_t rows, int64_t columns) { return arena_.take({rows, columns}, DType::f32); }
  // Random logical values [kRows, columns], a function of the seed; this rank's columns of them, times their factor.
  Tensor random(int64_t columns, uint64_t seed, const Ranges& ranges, const std::vector<double>& factors = {}) {
    Tensor own = take(kRows, width_of(ranges));
    Values values = columns_of(random_values(kRows * columns, seed), columns, ranges);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= factors.empty() ? 1 : factors[i % factors.size()];
    set_values(own, values);
    return own;
  }
  Tensor random(int64_t columns, uint64_t seed) { return random(columns, seed, {{0, columns}}); }

  // Heads as the QKV product lies: q, k and v side by side.
  int64_t hidden() const { return decoder.config().hidden; }
  int64_t query_width() const { return decoder.config().attention.heads * decoder.config().head_dim(); }
  int64_t key_width() const { return decoder.config().kv_heads() * decoder.config().head_dim(); }
  Ranges queries() { return even_share(query_width(), 1); }
  Ranges keys() { return even_share(key_width(), replicas()); }
  Ranges qkv() {
    auto [k_begin, k_end] = keys()[0];
    const int64_t k_at = query_width(), v_at = k_at + key_width();
    return {queries()[0], {k_at + k_begin, k_at + k_end}, {v_at + k_begin, v_at + k_end}};
  }
  Ranges features() { return even_share(decoder.config().ffn, 1); }
  int replicas() { return block().attention.qkv.weights[1]->placement.replicas; }
  // Ranks that hold the same KV head have different parts of its gradient, which add up to one.
  double share_of_replica() {
    const int R = replicas(), r = mesh().tensor().rank() % R;
    return 2.0 * (r + 1) / (R * (R + 1));
  }
  std::vector<double> shares(int64_t whole, int64_t shared) {
    std::vector<double> factors(size_t(whole), 1.0);
    factors.resize(size_t(whole + shared), share_of_replica());
    return factors;
  }
  // The sum of what the ranks that hold the same KV heads have.
  Values summed_over_replicas(Values values) {
    mesh().replica_group(replicas()).all_reduce(Tensor(values.data(), {int64_t(values.size())}, DType::f64));
    return values;
  }

 private:
  Ranges even_share(int64_t columns, int replicas) {
    const int64_t pieces = mesh().tensor().size() / replicas, own = columns / pieces;
    const int64_t piece = mesh().tensor().rank() / replicas;
    return {{piece * own, (piece + 1) * own}};
  }

  Arena arena_, scratch_;
  DeviceTensor places_, first_key_;
  Tensor rope_;

 public:
  nn::Context context;
};

}  // namespace keel::testing
