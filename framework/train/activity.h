// What this rank is at, until the scope ends: for the lines of a wait that takes too long, and for traces.
#pragma once

#include "framework/base/trace.h"
#include "framework/comm/communicator.h"

namespace keel::train {

class Activity {
 public:
  // `name` is a literal.
  Activity(comm::Communicator& world, int64_t step, const char* name) : span_(name, step) {
    world.stand_at(step, name);
  }

 private:
  Span span_;
};

}  // namespace keel::train
