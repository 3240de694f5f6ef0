#include "framework/ops/attention/attention_plan.h"

#include "framework/tensor/buffer.h"

namespace keel::ops::cpu {

// What a row costs besides its products, in keys.
constexpr int64_t kRowCost = 16;

AttentionPlan::AttentionPlan(const AttentionInputs& inputs, const AttentionOptions& options)
    : batch_(inputs.q.size(0)),
      queries_(inputs.q.size(1)),
      keys_(inputs.k.size(1)),
      heads_(inputs.q.size(2)),
      heads_per_kv_(heads_ / inputs.k.size(2)),
      blocks_per_head_((queries_ + kBlockRows - 1) / kBlockRows),
      causal_(options.causal),
      q_offset_(options.q_offset),
      window_(options.window) {
  if (!inputs.first_key.defined()) return;
  first_key_ = inputs.first_key.as<int32_t>();
  first_key_stride_ = inputs.first_key.stride(0);
}

AttentionBlock AttentionPlan::block(int64_t number) const {
  const int64_t head = number / blocks_per_head_, first_row = number % blocks_per_head_ * kBlockRows;
  return {head / heads_, head % heads_, first_row, std::min(kBlockRows, queries_ - first_row)};
}

int64_t AttentionPlan::cost(int64_t b, int64_t first_row) const {
  int64_t keys = 0;
  const int64_t end = std::min(first_row + kBlockRows, queries_);
  for (int64_t t = first_row; t < end; ++t) keys += kRowCost + std::max<int64_t>(visible(b, t).size(), 0);
  return keys;
}

void AttentionPlan::split(std::span<int64_t> bounds) const {
  const int64_t parts = int64_t(bounds.size()) - 1;
  int64_t total = 0;
  for (int64_t b = 0; b < batch_; ++b)
    for (int64_t row = 0; row < queries_; row += kBlockRows) total += heads_ * cost(b, row);

  int64_t number = 0, before = 0, part = 0;
  for (int64_t b = 0; b < batch_; ++b)
    for (int64_t h = 0; h < heads_; ++h)
      for (int64_t row = 0; row < queries_; row += kBlockRows, ++number) {
        const int64_t here = cost(b, row);
        // A block goes to the part that holds its middle.
        while (part < parts && (before + here / 2) * parts >= part * total) bounds[part++] = number;
        before += here;
      }
  while (part <= parts) bounds[part++] = number;
}

std::byte* attention_scratch(int64_t size_bytes) {
  static thread_local Buffer buffer;
  if (buffer.size_bytes() < size_bytes) buffer = Buffer(Device{}, size_bytes);
  return buffer.data();
}

}  // namespace keel::ops::cpu
