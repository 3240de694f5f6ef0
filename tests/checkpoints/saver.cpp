// Saves one checkpoint after another until it is killed: saver DIRECTORY FIRST_STEP
#include <cstdio>
#include <cstdlib>

#include "checkpoints/latest.h"
#include "tests/checkpoints/state.h"

int main(int, char** arguments) {
  using namespace keel;
  using namespace keel::checkpoints;
  const std::string directory = arguments[1];
  auto world = comm::make_self_communicator();
  io::IoThread io;
  State state(*world, {});
  state.fill();
  remove_leftovers(directory);
  for (int64_t step = std::atoll(arguments[2]);; ++step) {
    write_checkpoint(*world, io, state.tensors(), some_run_state(),
                     {.path = directory + "/" + file_name(step), .tile_elements = 16});
    std::printf("%lld\n", static_cast<long long>(step));
    std::fflush(stdout);
  }
}
