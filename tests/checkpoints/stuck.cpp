// One rank whose I/O thread does not come back: stuck DIRECTORY MOMENT, under mpirun.
#include <unistd.h>

#include "checkpoints/agreement.h"
#include "tests/checkpoints/state.h"

int main(int, char** arguments) {
  using namespace keel;
  using namespace keel::checkpoints;
  const std::string path = std::string(arguments[1]) + "/" + file_name(1), moment = arguments[2];
  return comm::run({}, [&](comm::World& world) {
    io::IoThread io;
    const bool stuck = world.rank() == world.size() - 1;
    const auto forever = [](io::IoContext&) { sleep(600); };
    if (moment == "alone") {  // nobody waits for it inside MPI-IO
      together(world.all(), [&] {
        if (stuck) run_within(0.5, io, "writing to " + path, forever);
      });
      return 0;
    }
    if (stuck) io.submit(forever);
    State state(world.all(), {.tensor = 1, .data = world.size()});
    state.fill();
    write_checkpoint(world.all(), io, state.tensors(), some_run_state(),
                     {.path = path, .io_comm = world.io_comm(), .tile_elements = 16, .io_limit_seconds = 0.5});
    return 0;
  });
}
