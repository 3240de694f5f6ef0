// Where a logit stands: its sequence among a step's, and the positions of its query and key in that sequence.
#pragma once

#include <cstdint>

namespace keel::ops {

// As one number a place is larger the earlier it is, by sequence, query and key, so that a maximum over blocks,
// micro-batches and ranks keeps the first of equal logits. 0 is no place.
struct LogitPlace {
  static constexpr int kKeyBits = 22, kSequenceShift = 2 * kKeyBits;
  static constexpr int64_t kMostPositions = int64_t(1) << kKeyBits, kMostSequences = int64_t(1)
                                                                                     << (63 - kSequenceShift);
  static constexpr int64_t kFirst = INT64_MAX;  // of sequence, query and key 0

  int64_t sequence = 0, query = 0, key = 0;
  bool operator==(const LogitPlace&) const = default;

  static constexpr int64_t number_of(const LogitPlace& place) {
    return kFirst - ((place.sequence << kSequenceShift) + (place.query << kKeyBits) + place.key);
  }
  static constexpr LogitPlace of(int64_t number) {
    const int64_t from_first = kFirst - number, mask = kMostPositions - 1;
    return {from_first >> kSequenceShift, from_first >> kKeyBits & mask, from_first & mask};
  }
};

}  // namespace keel::ops
