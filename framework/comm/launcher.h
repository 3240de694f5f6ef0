// What the launcher (mpirun, srun) did to this process: how many ranks it announced, which cores it left us.
#pragma once

#include <sched.h>

#include <functional>
#include <span>
#include <string>

namespace keel::comm {

// getenv, or a test's.
using Environment = std::function<const char*(const char*)>;

// Throws an input error when the launcher announces more ranks than MPI found: each process would believe it is rank 0
// of 1, and all would train alone and write to one directory.
void check_launcher(const Environment& environment, int rank, int size);

// The cores this rank should use: each core in its mask counts 1 / (ranks on this host that may use it). At least 1.
int fair_cores(const cpu_set_t& mine, std::span<const cpu_set_t> of_local_ranks);

// One line of advice when the launcher bound this rank to one core though the host has several for each rank; or "".
std::string binding_advice(int bound_cores, int host_cores, int local_size);

}  // namespace keel::comm
