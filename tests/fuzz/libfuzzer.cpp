// The entry of libFuzzer; CMake names the target.
#include <mpi.h>

#include "framework/base/log.h"
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  keel::log::set_speaker({.least = keel::log::Level::error});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const char* data, size_t size) {
  keel::fuzz::KEEL_FUZZ_TARGET({data, size});
  return 0;
}
