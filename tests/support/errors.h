// What a call throws, as text.
#pragma once

#include <exception>
#include <string>

#include "framework/base/error.h"

namespace keel::testing {

// What f throws; "" where it throws nothing.
template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// The message of the input error that f throws; "" where it throws none.
template <class F>
std::string input_error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::input ? error.what() : std::string("internal: ") + error.what();
  }
  return "";
}

}  // namespace keel::testing
