// An error on one rank becomes the same error on all, so that none waits for another.
#pragma once

#include <exception>
#include <functional>

#include "framework/comm/communicator.h"

namespace keel::checkpoints {

// Every rank runs f; then all throw the error of the lowest rank that failed, with its kind. Collective.
inline void together(comm::Communicator& world, const std::function<void()>& f) {
  bool failed = true;
  std::string message;
  ErrorKind kind = ErrorKind::internal;
  try {
    f();
    failed = false;
  } catch (const Error& error) {
    message = error.what();
    kind = error.kind();
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
    message = "an exception of unknown type";
  }
  try {
    const int64_t first = comm::lowest_rank_where(world, failed);
    if (first == world.size()) return;
    kind =
        ErrorKind(comm::all_reduce_value(world, int64_t(world.rank() == first ? int(kind) : 0), comm::Reduction::max));
    message = comm::broadcast_text(world, message, int(first));
  } catch (const Error&) {
    if (!failed) throw;  // else what f threw came first, and says more
  }
  throw Error(kind, message);
}

// What rank 0 sees. Collective.
inline bool rank_0_sees(comm::Communicator& world, const std::function<bool()>& f) {
  return comm::all_reduce_value(world, int64_t(world.rank() == 0 && f()), comm::Reduction::max) != 0;
}

// What f throws, with the number of this rank before it and `advice` behind it: for what ranks may see differently.
inline void naming_rank(const comm::Communicator& world, const std::string& advice, const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    const std::string place = world.size() > 1 ? fmt::format("rank {}: ", world.rank()) : "";
    throw Error(error.kind(), place + error.what() + advice);
  }
}

}  // namespace keel::checkpoints
