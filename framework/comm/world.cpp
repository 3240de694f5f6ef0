#include "framework/comm/world.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "framework/base/clock.h"
#include "framework/base/log.h"
#include "framework/base/process.h"
#include "framework/base/text.h"
#include "framework/comm/agreement.h"
#include "framework/comm/launcher.h"
#include "framework/comm/nccl.h"

namespace keel::comm {
namespace {

const char* environment(const char* name) {
  return std::getenv(name);
}

cpu_set_t cores_of_process(pid_t process) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(process, sizeof cores, &cores) != 0) CPU_SET(0, &cores);  // over 1024 cores: count one
  return cores;
}

// The sum of ranks must be n (n - 1) / 2, and must come in time: finds ranks that cannot reach each other.
void check_all_reachable(int rank, int size, double limit_seconds) {
  const int64_t expected = int64_t(size) * (size - 1) / 2;
  static int64_t mine, sum;  // outlive an exchange that never ends
  mine = rank;
  MPI_Request request = MPI_REQUEST_NULL;
  KEEL_MPI(MPI_Iallreduce(&mine, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD, &request));
  const auto begin = Clock::now();
  for (int done = 0; !done;) {
    KEEL_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    const double waited_seconds = seconds_since(begin);
    require(
        done || waited_seconds < limit_seconds,
        "the {} ranks could not reach each other within {} s of the start: check that all hosts are up, and name the "
        "network to use: OMPI_MCA_btl_tcp_if_include and OMPI_MCA_oob_tcp_if_include for MPI, NCCL_SOCKET_IFNAME "
        "for NCCL (mpirun -x NAME passes a variable on)",
        size, limit_seconds);
    if (!done) sched_yield();
  }
  require(sum == expected, "the sum of {} ranks came out as {}, not {}: MPI is broken here", size, sum, expected);
}

}  // namespace

MpiSession::MpiSession() {
  int started = 0, provided = 0;
  KEEL_MPI(MPI_Initialized(&started));
  owner_ = !started;
  // With more ranks than cores, a rank that waits must not keep the core from the one it waits for.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  if (owner_) KEEL_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  KEEL_MPI(MPI_Query_thread(&provided));
  KEEL_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  if (provided < MPI_THREAD_MULTIPLE)
    throw input_error("this MPI library has no MPI_THREAD_MULTIPLE, which saving in the background needs: use another");
}

MpiSession::~MpiSession() {
  int ended = 0;
  MPI_Finalized(&ended);
  if (owner_ && !ended && std::uncaught_exceptions() == 0) MPI_Finalize();
}

World::World(const WorldOptions& options) : options_(options) {
  int rank = 0, size = 1;
  KEEL_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  KEEL_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
  log::set_speaker({.rank = rank});
  check_launcher(environment, rank, size);
  check_all_reachable(rank, size, options.start_limit_seconds);
  make_communicators("all");
  measure_host();
}

World::World(const World& parent, int color) : options_(parent.options_) {
  parent.all_->barrier();  // MPI waits for a rank that does not come without a limit
  KEEL_MPI(MPI_Comm_split(parent.comm_, color, parent.rank(), &comm_));
  KEEL_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  make_communicators("group");
  host_ = parent.host_;
  local_rank_ = parent.local_rank_;  // of the host, since that says which GPU is this rank's
  local_size_ = parent.local_size_;
  threads_ = parent.threads_;
}

void World::make_communicators(std::string_view name) {
  options_.mpi.on_timeout = [this] {
    if (watch_) watch_->alarm();
  };
  all_ = make_mpi_communicator(comm_, options_.mpi, name);
  KEEL_MPI(MPI_Comm_dup(comm_, &io_comm_));
  KEEL_MPI(MPI_Comm_set_errhandler(io_comm_, MPI_ERRORS_RETURN));
  standing_ = all_->standing();
  watch_.emplace(comm_, [this] { return standing_text(); });
}

World::~World() {
  watch_.reset();
  if (io_comm_ != MPI_COMM_NULL) MPI_Comm_free(&io_comm_);
  if (comm_ != MPI_COMM_WORLD) MPI_Comm_free(&comm_);
}

void World::measure_host() {
  host_ = host_name();
  MPI_Comm local = MPI_COMM_NULL;
  KEEL_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, all_->rank(), MPI_INFO_NULL, &local));
  KEEL_MPI(MPI_Comm_rank(local, &local_rank_));
  KEEL_MPI(MPI_Comm_size(local, &local_size_));
  const cpu_set_t mine = cores_of_process(0);
  std::vector<cpu_set_t> masks(static_cast<size_t>(local_size_));
  KEEL_MPI(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, masks.data(), sizeof mine, MPI_BYTE, local));
  KEEL_MPI(MPI_Comm_free(&local));

  int64_t wanted = 0;
  const char* variable = environment("OMP_NUM_THREADS");
  const bool given = variable && parse_integer(variable, wanted) && wanted > 0;
  threads_ = given ? int(wanted) : fair_cores(mine, masks);
  omp_set_num_threads(threads_);
  // The launcher itself is not bound, so its cores are the host's.
  const cpu_set_t host_cores = cores_of_process(getppid());
  std::string advice = binding_advice(CPU_COUNT(&mine), CPU_COUNT(&host_cores), local_size_);
  if (all_->rank() == 0 && !given && !advice.empty()) log::warning("{}", advice);
}

GpuLack World::find_gpu_lack() {
  return comm::find_gpu_lack(*all_, host_, local_rank_, local_size_);
}

Device World::use_gpu() {
  if (gpu_) return *gpu_;
  const Device device = choose_gpu(*all_, host_, local_rank_, local_size_);
  const int ranks = size();
  const double usual_seconds = all_->set_time_limit(options_.start_limit_seconds);
  try {
    if (ranks == 1) {
      before_gpu_ = std::exchange(all_, make_self_communicator(all_->standing()));
    } else {
      all_ = make_nccl_communicator(std::move(all_), device, "all", options_.mpi.on_timeout);
    }
    check_gpus_reach_each_other(*all_, device);
  } catch (const Error& error) {
    throw Error(error.kind(),
                fmt::format("the GPUs of the {} ranks could not be brought together (this one is {} of host {}): {}",
                            ranks, device.text(), host_, error.what()));
  }
  all_->set_time_limit(usual_seconds);
  gpu_ = device;
  return device;
}

std::unique_ptr<Communicator> World::another(std::string_view name) {
  MpiOptions options = options_.mpi;
  options.pause_microseconds = 500;
  all_->barrier();
  auto other = make_mpi_communicator(comm_, options, name);
  std::lock_guard lock(beside_mutex_);
  std::erase_if(beside_, [](const Beside& beside) { return beside.standing.expired(); });
  beside_.push_back({std::string(name), other->standing()});
  return other;
}

std::string World::standing_text() {
  std::string text = fmt::format("on host {}: {}", host_, standing_->text());
  std::lock_guard lock(beside_mutex_);
  for (const Beside& beside : beside_)
    if (const auto standing = beside.standing.lock()) text += fmt::format("; {}: {}", beside.name, standing->text());
  return text;
}

std::string World::on_rank_0(const std::function<std::string()>& f) {
  std::string text;
  do_on_rank_0([&] { text = f(); });
  return broadcast_text(*all_, text);
}

void World::do_on_rank_0(const std::function<void()>& f) {
  comm::on_rank_0(*all_, f);
}

}  // namespace keel::comm
