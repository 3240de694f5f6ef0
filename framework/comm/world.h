// All ranks of a run: starts MPI, says who and where this process is, and how a run ends on all of them.
//
//   int main() {
//     return keel::comm::run({}, [](World& world) {
//       Config config = parse(world.on_rank_0([] { return read_file("x.yaml"); }));
//       ...
//       return 0;
//     });
//   }
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "framework/comm/gpu_choice.h"
#include "framework/comm/watch.h"

namespace keel::comm {

struct WorldOptions {
  double start_limit_seconds = 60;  // for the first exchange between all ranks
  MpiOptions mpi;
};

// Starts MPI and ends it, unless it was already started by someone else.
class MpiSession {
 public:
  MpiSession();
  ~MpiSession();  // leaves MPI alone while an exception passes: ending it needs all ranks, see run()
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  bool owner_ = false;
};

class World {
 public:
  // Throws an input error when launcher and MPI disagree about the number of ranks or MPI lacks threads, an internal
  // error when the ranks cannot reach each other within the limit. Sets the number of OpenMP threads to threads().
  explicit World(const WorldOptions& options = {});
  // The ranks of `parent` with this rank's color (0 or more), as a world of their own. Collective over `parent`.
  World(const World& parent, int color);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return all_->rank(); }
  int size() const { return all_->size(); }
  // Among the ranks that share this host's memory.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  const std::string& host() const { return host_; }
  // OMP_NUM_THREADS, or this rank's share of the cores it may run on.
  int threads() const { return threads_; }

  // Of the thread that made the World.
  Communicator& all() { return *all_; }
  // From here on all(), another object beside that from before, and what is split from it carry tensors of the GPU that
  // this returns, too (nccl.h). Throws an input error where a rank has no GPU to itself, an internal error where the
  // GPUs cannot reach each other within the start's limit. Collective; asked again, it gives the same.
  Device use_gpu();
  // Why not every rank can have a GPU to itself. Collective, before use_gpu().
  GpuLack find_gpu_lack();
  // All ranks, for one other thread (checkpoint exchange), which sleeps while it waits. Collective.
  std::unique_ptr<Communicator> another(std::string_view name);
  // All ranks, for parallel HDF5 in the I/O thread; nothing else is sent there. Owned by World.
  MPI_Comm io_comm() const { return io_comm_; }

  // Runs f on rank 0 and gives its text, if any, to all; what f throws is thrown on all ranks. Collective.
  std::string on_rank_0(const std::function<std::string()>& f);
  void do_on_rank_0(const std::function<void()>& f);

 private:
  // Where one of the threads that exchange beside the World's own stands; gone with its communicator.
  struct Beside {
    std::string name;
    std::weak_ptr<const Standing> standing;
  };
  void make_communicators(std::string_view name);
  std::string standing_text();  // on any thread
  void measure_host();

  MpiSession session_;
  MPI_Comm comm_ = MPI_COMM_WORLD;
  MPI_Comm io_comm_ = MPI_COMM_NULL;
  std::unique_ptr<Communicator> all_;
  std::unique_ptr<Communicator> before_gpu_;  // all_ until then, which others may still hold
  std::shared_ptr<const Standing> standing_;  // of both
  std::mutex beside_mutex_;
  std::vector<Beside> beside_;
  WorldOptions options_;
  std::optional<Watch> watch_;
  std::optional<Device> gpu_;
  std::string host_;
  int local_rank_ = 0;
  int local_size_ = 1;
  int threads_ = 1;
};

// What main() does: makes the World, runs `body` and ends all ranks with one exit code, its result or that of the error
// of the lowest rank that failed, which is printed as one line by that rank. Never hangs: where other ranks cannot come
// to the same end within 2 seconds of an error, because they wait inside a collective, they are aborted with that code.
// A code that `body` returns is no error: the others are waited for as long as they work.
int run(const WorldOptions& options, const std::function<int(World&)>& body);

// Prints the error as `run` does, once where several ranks come here, and ends all with its code, at once: for where
// unwinding would wait for ever, because another thread of this process is stuck.
[[noreturn]] void end_all_ranks(const Error& error);

}  // namespace keel::comm
