// KEEL_HDF5: every HDF5 call is checked, and made on the I/O thread only.
#pragma once

#include <hdf5.h>

#include <source_location>
#include <string>
#include <string_view>

#include "framework/base/error.h"
#include "framework/io/io_thread.h"

namespace keel::io {

// Called once by the I/O thread before its first job: starts the library, and stops it from printing by itself.
void start_hdf5();

// An Error from HDF5's error stack, which is cleared: one line with the subject (file, or file and object), the
// innermost cause, the system's own words where there is an errno, and what to do.
Error hdf5_error(std::string_view subject, std::string_view call, std::source_location where);

inline void require_io_thread(std::source_location where = std::source_location::current()) {
  if (!on_io_thread()) [[unlikely]]
    throw Error(ErrorKind::internal, "HDF5 called outside the I/O thread", where);
}

// The value of a call that returns a negative number on failure.
template <class Value>
Value checked_hdf5(Value value, std::string_view subject, std::string_view call,
                   std::source_location where = std::source_location::current()) {
  if (value < 0) [[unlikely]]
    throw hdf5_error(subject, call, where);
  return value;
}

}  // namespace keel::io

// hid_t id = KEEL_HDF5(path, H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
#define KEEL_HDF5(subject, call) ::keel::io::checked_hdf5((::keel::io::require_io_thread(), (call)), subject, #call)
