// How attention is cut on CPUs: the keys that a row sees, blocks of query rows, and which part of the threads computes
// which blocks. No arithmetic on activations here.
#pragma once

#include <algorithm>
#include <span>

#include "framework/ops/attention/attention.h"

namespace keel::ops::cpu {

// A tile of scores: kBlockRows queries (whole groups of 6 or 8 for the kernel) by kTileKeys keys.
constexpr int64_t kBlockRows = 48;
constexpr int64_t kTileKeys = 128;

struct Interval {
  int64_t begin = 0, end = 0;

  bool empty() const { return begin >= end; }
  int64_t size() const { return end - begin; }
  Interval intersected(Interval other) const { return {std::max(begin, other.begin), std::min(end, other.end)}; }
  // The smallest interval that holds both.
  Interval joined(Interval other) const {
    if (empty()) return other;
    if (other.empty()) return *this;
    return {std::min(begin, other.begin), std::max(end, other.end)};
  }
};

// Query rows [first_row, first_row + rows) of head h of batch entry b.
struct AttentionBlock {
  int64_t b, h, first_row, rows;
};

// Blocks are numbered in the order (b, h, rows), so that those of one KV head of one batch entry ("team") follow one
// another.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionInputs& inputs, const AttentionOptions& options);

  // The keys that row t of batch entry b sees: always one interval.
  Interval visible(int64_t b, int64_t t) const {
    const int64_t position = q_offset_ + t;
    Interval keys = {first_key_ ? first_key_[b * first_key_stride_ + t] : 0, causal_ ? position + 1 : keys_};
    if (window_ > 0) keys.begin = std::max(keys.begin, position - window_ + 1);
    return keys.intersected({0, keys_});
  }

  int64_t blocks() const { return batch_ * heads_ * blocks_per_head_; }
  int64_t blocks_per_team() const { return heads_per_kv_ * blocks_per_head_; }
  AttentionBlock block(int64_t number) const;

  // Cuts the blocks into bounds.size() - 1 contiguous parts of nearly equal cost: part p is [bounds[p], bounds[p + 1]).
  void split(std::span<int64_t> bounds) const;

 private:
  int64_t cost(int64_t b, int64_t first_row) const;

  int64_t batch_, queries_, keys_, heads_, heads_per_kv_, blocks_per_head_;
  bool causal_;
  int64_t q_offset_, window_;
  const int32_t* first_key_ = nullptr;
  int64_t first_key_stride_ = 0;
};

// Memory of the calling thread that grows on first use and stays. Forward takes 8 (T_k + kBlockRows) d bytes per part
// and a tile of scores, backward 32 T_k d (keys, values and two pairs of their gradients) and two tiles.
std::byte* attention_scratch(int64_t size_bytes);

}  // namespace keel::ops::cpu
