// Jobs of the I/O thread that all ranks run together, and so may wait in for ever where one of them is stuck.
#pragma once

#include <functional>
#include <string>

#include "framework/comm/agreement.h"
#include "framework/comm/world.h"
#include "framework/io/io_thread.h"

namespace keel::checkpoints {

// Far longer than the slowest disk takes for one call.
constexpr double kIoLimit_seconds = 1800;
// Those who wait for a rank wait so much longer: it speaks first, and knows more.
constexpr double kPatience_seconds = 60;

// Runs `job(IoContext&)`, waits and returns what it does. Where it takes longer than the limit, nothing can be done any
// more in this process (HDF5 has one thread, and that is stuck): all ranks end, and the line names this rank and what
// it was `doing`.
template <class Job>
auto run_within(double limit_seconds, io::IoThread& io, const std::string& doing, Job job)
    -> std::invoke_result_t<Job&, io::IoContext&> {
  auto done = io.submit_awaited([&job](io::IoContext& context) -> decltype(auto) { return job(context); });
  if (!done.wait_within(limit_seconds))
    comm::end_all_ranks(
        Error(ErrorKind::internal,
              fmt::format("{} has not ended within {} s: this rank's disk does not answer, or another rank is stuck",
                          doing, limit_seconds)));
  return done.get();
}

// The same on rank 0 alone; what the job throws is thrown on all ranks. Collective.
inline void run_on_rank_0(comm::Communicator& world, double limit_seconds, io::IoThread& io, const std::string& doing,
                          const std::function<void(io::IoContext&)>& job) {
  comm::on_rank_0(world, [&] { run_within(limit_seconds, io, doing, job); });
}

}  // namespace keel::checkpoints
