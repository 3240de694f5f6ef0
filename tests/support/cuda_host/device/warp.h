// The stand-in's side of framework/ops/device/warp.h.
#pragma once

#include <bit>

#include "tests/support/cuda_host/device/thread.h"
#include "tests/support/cuda_host/faults.h"

namespace keel::device {

constexpr unsigned kAllLanes = 0xffffffffu;
using Place = std::source_location;

inline unsigned lane() {
  return cuda_host::this_thread().lane();
}

namespace detail {

// What a lane gives, from whom it takes, what it gets.
template <class T>
struct Exchange {
  T given;
  unsigned from;
  T got;
};

template <class T>
void exchange(void* const* arguments, unsigned mask) {
  for (unsigned i = 0; i < unsigned(kWarp); ++i) {
    if (!(mask >> i & 1)) continue;
    auto* own = static_cast<Exchange<T>*>(arguments[i]);
    if (!(mask >> own->from & 1)) cuda_host::fault("warp divergence: a shuffle from a lane outside its mask");
    own->got = static_cast<Exchange<T>*>(arguments[own->from])->given;
  }
}

template <class T>
T take(T value, unsigned from, unsigned mask, const Place& place) {
  Exchange<T> own{value, from, value};
  cuda_host::warp_collective(mask, exchange<T>, &own, place);
  return own.got;
}

struct Vote {
  bool predicate;
  unsigned ballot;
};

inline void vote(void* const* arguments, unsigned mask) {
  unsigned ballot = 0;
  for (unsigned i = 0; i < unsigned(kWarp); ++i)
    if (mask >> i & 1) ballot |= unsigned(static_cast<Vote*>(arguments[i])->predicate) << i;
  for (unsigned i = 0; i < unsigned(kWarp); ++i)
    if (mask >> i & 1) static_cast<Vote*>(arguments[i])->ballot = ballot;
}

inline void nothing(void* const*, unsigned) {}

}  // namespace detail

inline void sync_warp(unsigned mask = kAllLanes, Place place = Place::current()) {
  cuda_host::warp_collective(mask, detail::nothing, nullptr, place);
}

template <class T>
T shuffle_xor(T value, unsigned bits, unsigned mask = kAllLanes, Place place = Place::current()) {
  return detail::take(value, (lane() ^ bits) % kWarp, mask, place);
}
template <class T>
T shuffle(T value, unsigned from, unsigned mask = kAllLanes, Place place = Place::current()) {
  return detail::take(value, from % kWarp, mask, place);
}
inline unsigned ballot(bool predicate, unsigned mask = kAllLanes, Place place = Place::current()) {
  detail::Vote own{predicate, 0};
  cuda_host::warp_collective(mask, detail::vote, &own, place);
  return own.ballot;
}
inline bool any(bool predicate, unsigned mask = kAllLanes, Place place = Place::current()) {
  return ballot(predicate, mask, place) != 0;
}
inline bool all(bool predicate, unsigned mask = kAllLanes, Place place = Place::current()) {
  return ballot(predicate, mask, place) == mask;
}

inline int count_bits(unsigned bits) {
  return std::popcount(bits);
}

}  // namespace keel::device
