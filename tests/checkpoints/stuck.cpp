// One rank whose I/O thread does not come back, or late: stuck DIRECTORY MOMENT, under mpirun.
#include <unistd.h>

#include "framework/comm/agreement.h"
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
      comm::together(world.all(), [&] {
        if (stuck) run_within(0.5, io, "writing to " + path, forever);
      });
      return 0;
    }
    if (moment == "unanswered") {  // f itself finds that a rank is gone; no agreement is possible any more
      world.all().set_time_limit(0.5);
      if (stuck) sleep(600);
      comm::together(world.all(), [&] { comm::all_reduce_value(world.all(), 1.0); });
      return 0;
    }
    const bool slow = moment == "slow";  // longer than the limit of exchanges, shorter than that of saving
    if (slow) world.all().set_time_limit(0.3);
    if (stuck) slow ? io.submit([](io::IoContext&) { sleep(2); }) : io.submit(forever);
    State state(world.all(), {.tensor = 1, .data = world.size()});
    state.fill();
    write_checkpoint(world.all(), io, state.tensors(), some_run_state(),
                     {.path = path,
                      .io_comm = world.io_comm(),
                      .tile_elements = 16,
                      .io_limit_seconds = slow ? kIoLimit_seconds : 0.5});
    require(world.all().set_time_limit(60) == 0.3, "the limit of exchanges is another one after a save");
    return 0;
  });
}
