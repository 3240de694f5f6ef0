// What the twins of stochastic_rounding.h share: integers only, so that they agree in every bit.
#pragma once

#include "framework/base/rng.h"

namespace keel::ops {

constexpr int64_t kRoundedTogether = 8;  // elements that share one draw of 128 bits: 16 each

// The upper half of an fp32's bits after `random`, 16 bits, was added to its lower half.
constexpr uint16_t rounded_by(uint32_t bits, uint32_t random) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(bits >> 16 | 0x40u);
  return uint16_t((magnitude == 0x7f800000u ? bits : bits + random) >> 16);
}

// The draw of the logical elements [8 group, 8 group + 8) at an update.
struct RoundingDraw {
  constexpr RoundingDraw(uint64_t key, int64_t group, int64_t update)
      : words(philox(key, uint64_t(group), uint64_t(update))) {}
  constexpr uint32_t operator[](int64_t i) const { return words[size_t(i / 2)] >> (16 * (i % 2)) & 0xffffu; }

  std::array<uint32_t, 4> words;
};

}  // namespace keel::ops
