#include "framework/data/sample_position.h"

#include <algorithm>

#include "framework/base/error.h"

namespace keel::data {

int64_t SamplePosition::consumed() const {
  int64_t count = next_;
  for (const SampleRange& range : left_out_) count -= std::max<int64_t>(0, std::min(range.end, next_) - range.begin);
  return count;
}

int64_t SamplePosition::walk(std::span<int64_t> indices) const {
  auto range = std::partition_point(left_out_.begin(), left_out_.end(),
                                    [&](const SampleRange& other) { return other.end <= next_; });
  int64_t index = next_;
  for (int64_t& out : indices) {
    if (range != left_out_.end() && index >= range->begin) index = (range++)->end;
    out = index++;
  }
  return index;
}

void SamplePosition::take(std::span<int64_t> indices) {
  next_ = walk(indices);
}

void SamplePosition::leave_out(SampleRange range) {
  require(range.begin >= next_ && range.begin < range.end, "cannot leave out samples {} to {} at position {}",
          range.begin, range.end, next_);
  std::vector<SampleRange> merged;
  for (const SampleRange& other : left_out_) {
    if (other.end < range.begin || other.begin > range.end) {
      merged.push_back(other);
    } else {
      range.begin = std::min(range.begin, other.begin);
      range.end = std::max(range.end, other.end);
    }
  }
  auto after = std::partition_point(merged.begin(), merged.end(),
                                    [&](const SampleRange& other) { return other.begin < range.begin; });
  merged.insert(after, range);
  left_out_ = std::move(merged);
}

std::vector<int64_t> SamplePosition::to_numbers() const {
  std::vector<int64_t> numbers = {next_};
  for (const SampleRange& range : left_out_) numbers.insert(numbers.end(), {range.begin, range.end});
  return numbers;
}

SamplePosition SamplePosition::from_numbers(std::span<const int64_t> numbers) {
  SamplePosition position;
  bool valid = numbers.size() % 2 == 1 && numbers[0] >= 0;
  for (size_t i = 1; valid && i + 1 < numbers.size(); i += 2) {
    const SampleRange range{numbers[i], numbers[i + 1]};
    valid = range.begin >= 0 && range.begin < range.end && (i == 1 || range.begin > numbers[i - 1]);
    position.left_out_.push_back(range);
  }
  if (!valid) throw input_error("the stored position in the data is damaged: {} numbers", numbers.size());
  position.next_ = numbers[0];
  return position;
}

}  // namespace keel::data
