#include "framework/comm/launcher.h"

#include <algorithm>
#include <cmath>

#include "framework/base/error.h"
#include "framework/base/text.h"

namespace keel::comm {
namespace {

// The nearest launcher first: mpirun inside a Slurm job starts its daemons as a Slurm step of its own.
struct Launcher {
  const char* size;
  const char* rank;
  const char* only_with;  // the others are set for every process of a batch job, started as a rank or not
};
constexpr Launcher kLaunchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", nullptr}, {"PMI_SIZE", "PMI_RANK", nullptr},
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", nullptr},   {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", nullptr},
    {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID"},
};

bool number(const Environment& environment, const char* name, int64_t& value) {
  const char* text = environment(name);
  return text && parse_integer(text, value);
}

}  // namespace

void check_launcher(const Environment& environment, int rank, int size) {
  for (const Launcher& launcher : kLaunchers) {
    if (launcher.only_with && !environment(launcher.only_with)) continue;
    int64_t announced = 0, announced_rank = rank;
    if (!number(environment, launcher.size, announced)) continue;
    number(environment, launcher.rank, announced_rank);
    if (announced <= size && announced_rank < std::max<int64_t>(announced, size)) return;
    throw input_error(
        "{} is {}, but MPI found {} rank{}, so each process would train alone: start with the mpirun that belongs to "
        "this MPI library, or with 'srun --mpi=TYPE' of a type it supports ('srun --mpi=list')",
        launcher.size, announced, size, size == 1 ? "" : "s");
  }
}

int fair_cores(const cpu_set_t& mine, std::span<const cpu_set_t> of_local_ranks) {
  double cores = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mine)) continue;
    auto sharers = std::count_if(of_local_ranks.begin(), of_local_ranks.end(),
                                 [core](const cpu_set_t& mask) { return CPU_ISSET(core, &mask); });
    cores += 1.0 / double(std::max<int64_t>(1, sharers));
  }
  return std::max(1, int(std::floor(cores + 1e-6)));
}

std::string binding_advice(int bound_cores, int host_cores, int local_size) {
  const int share = host_cores / std::max(1, local_size);
  if (bound_cores > 1 || share < 2) return "";
  return fmt::format(
      "each rank is bound to one core, {} could be used: start mpirun with --bind-to none or --map-by socket:PE={}",
      share, share);
}

}  // namespace keel::comm
