// How far training has come in the order of samples (sampler.h), and what it leaves out. A checkpoint stores it.
// A step of B samples takes the next B global sample indices that are in no left-out range, so that with nothing left
// out step s takes [s*B, (s+1)*B). The batch size may change between steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace keel::data {

struct SampleRange {  // global sample indices [begin, end)
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const SampleRange&) const = default;
};

class SamplePosition {
 public:
  // The next global sample index: everything before it was consumed or left out.
  int64_t next() const { return next_; }
  // Samples that steps have taken.
  int64_t consumed() const;
  // In order, disjoint, never touching.
  const std::vector<SampleRange>& left_out() const { return left_out_; }

  // The indices of the next step, indices.size() of them.
  void take(std::span<int64_t> indices);

  // After a rollback to this position: the samples in range.begin .. range.end will not be taken (again).
  // range.begin >= next(); ranges may overlap those left out before.
  void leave_out(SampleRange range);

  // {next, begin, end, begin, end, ...}, for a checkpoint. Errors: numbers that are no position.
  std::vector<int64_t> to_numbers() const;
  static SamplePosition from_numbers(std::span<const int64_t> numbers);

  bool operator==(const SamplePosition&) const = default;

 private:
  int64_t walk(std::span<int64_t> indices) const;

  int64_t next_ = 0;
  std::vector<SampleRange> left_out_;
};

}  // namespace keel::data
