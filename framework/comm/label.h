// What a started verb is called in messages.
#pragma once

#include <fmt/format.h>

#include <string>

#include "framework/tensor/dtype.h"

namespace keel::comm {

struct Label {
  const char* verb = "";
  int64_t elements = 0;
  DType dtype = DType::f32;
};

// Who waits: one rank of one group.
struct Place {
  int rank = 0;
  int size = 1;
  std::string name;
};

// "rank 0 of 4 in group 'all', all_reduce of 8 fp32 elements"
inline std::string text(const Place& place, const Label& label) {
  return fmt::format("rank {} of {} in group '{}', {} of {} {} elements", place.rank, place.size, place.name,
                     label.verb, label.elements, name_of(label.dtype));
}

}  // namespace keel::comm
