// Random numbers as pure functions of (key, counter): any element at any layout, without a state to carry.
// Philox4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace keel {

// Four independent 32-bit words for this key and counter.
constexpr std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter, uint64_t stream = 0) {
  std::array<uint32_t, 4> x = {uint32_t(counter), uint32_t(counter >> 32), uint32_t(stream), uint32_t(stream >> 32)};
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * x[0], b = uint64_t(0xCD9E8D57u) * x[2];
    x = {uint32_t(b >> 32) ^ x[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ x[3] ^ k1, uint32_t(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}

// A key from a seed and a name, so that streams (data, initial values of one parameter, ...) are independent.
uint64_t key_of(uint64_t seed, std::string_view name);

// Uniform in (0, 1), never 0 or 1; a function of (key, index).
double uniform(uint64_t key, uint64_t index);

// The inverse of the normal distribution function, to about 1e-15 (Wichura 1988, AS 241).
double inverse_normal(double p);

// A pseudo-random permutation of [0, n) in O(1) memory: where element `index` of the shuffled order comes from.
// A Feistel network over the next power of four, walked until it lands inside (Black & Rogaway 2002).
class Permutation {
 public:
  Permutation(uint64_t key, uint64_t n);
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t key_;
  uint64_t n_;
  int half_bits_;
};

}  // namespace keel
