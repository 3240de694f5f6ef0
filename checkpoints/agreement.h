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
  const int64_t first =
      -comm::all_reduce_value(world, int64_t(failed ? -world.rank() : -world.size()), comm::Reduction::max);
  if (first == world.size()) return;
  const int64_t code =
      comm::all_reduce_value(world, int64_t(world.rank() == first ? int(kind) : 0), comm::Reduction::max);
  throw Error(ErrorKind(code), comm::broadcast_text(world, message, int(first)));
}

}  // namespace keel::checkpoints
