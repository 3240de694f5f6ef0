// A program that ends in the way its argument names; ending_test.cpp looks at its exit code and lines.
#include <csignal>
#include <cstdlib>
#include <map>
#include <new>
#include <thread>
#include <vector>

#include "framework/base/log.h"
#include "framework/comm/world.h"
#include "framework/tensor/buffer.h"

namespace keel::comm {
namespace {

bool last(World& world) {
  return world.rank() == world.size() - 1;
}

void reduce_something(World& world) {
  OwnedTensor x({1 << 20}, DType::f32);
  world.all().all_reduce(x);
}

// The last rank runs f, the others wait for it inside a collective.
template <class F>
int alone(World& world, F f) {
  if (last(world)) f();
  reduce_something(world);
  return 0;
}

int threads_line(World& world) {
  for (int rank = 0; rank < world.size(); ++rank) {
    world.all().barrier();
    if (rank != world.rank()) continue;
    std::printf("rank %d/%d local %d/%d threads %d\n", rank, world.size(), world.local_rank(), world.local_size(),
                world.threads());
    std::fflush(stdout);
  }
  return 0;
}

int twenty_steps(World& world) {
  for (int step = 0; step < 20; ++step) {
    reduce_something(world);
    for (int i = 0; i < 200; ++i) all_reduce_value(world.all(), 1.0);
  }
  return 0;
}

int fail_with_pending_requests(World& world) {
  auto part = world.all().split(0, 0);
  OwnedTensor x({1 << 22}, DType::f32), y({1 << 22}, DType::f32);
  Request first = part->start_all_reduce(x, x);
  if (last(world)) throw input_error("with requests in flight");
  Request second = part->start_all_reduce(y, y);  // nobody else comes
  second.wait();
  return 0;
}

using Case = std::function<int(World&)>;

const std::map<std::string, Case> kCases = {
    {"fine", [](World& world) { return reduce_something(world), 0; }},
    {"code_3", [](World&) { return 3; }},
    {"input_on_all", [](World&) -> int { throw input_error("x.yaml:1:2: no such key"); }},
    {"input_on_rank_0",
     [](World& world) {
       world.on_rank_0([]() -> std::string { throw input_error("x.yaml:1:2: no such key"); });
       return 0;
     }},
    {"internal_on_all", [](World&) { return require(false, "a broken promise"), 0; }},
    {"internal_on_rank_0",
     [](World& world) {
       world.do_on_rank_0([] { require(false, "a broken promise"); });
       return 0;
     }},
    {"out_of_memory_on_rank_0",
     [](World& world) {
       world.do_on_rank_0([] { throw std::bad_alloc(); });
       return 0;
     }},
    {"alone_input", [](World& w) { return alone(w, [] { throw input_error("alone"); }); }},
    {"alone_internal", [](World& w) { return alone(w, [] { require(false, "alone"); }); }},
    {"alone_bad_alloc", [](World& w) { return alone(w, [] { throw std::bad_alloc(); }); }},
    {"alone_out_of_memory", [](World& w) { return alone(w, [] { std::vector<double> x(size_t(1) << 52); }); }},
    {"alone_number", [](World& w) { return alone(w, [] { throw 42; }); }},
    {"alone_mpi_error",
     [](World& w) { return alone(w, [] { KEEL_MPI(MPI_Send(nullptr, 0, MPI_BYTE, 99999, 0, MPI_COMM_WORLD)); }); }},
    {"alone_kill", [](World& w) { return alone(w, [] { std::raise(SIGKILL); }); }},
    {"alone_segv", [](World& w) { return alone(w, [] { std::raise(SIGSEGV); }); }},
    {"alone_term", [](World& w) { return alone(w, [] { std::raise(SIGTERM); }); }},
    {"alone_exit", [](World& w) { return alone(w, [] { std::_Exit(7); }); }},
    {"all_but_one_fail",
     [](World& world) -> int {
       if (world.rank() != 0) throw input_error("all but one");
       return reduce_something(world), 0;
     }},
    {"pending", fail_with_pending_requests},
    {"timeout",
     [](World& world) {
       world.all().set_time_limit(0.5);
       if (last(world)) std::this_thread::sleep_for(std::chrono::seconds(30));
       return reduce_something(world), 0;
     }},
    {"timeout_beside",
     [](World& world) {
       const auto saves = world.another("saves");
       world.all().stand_at(7, "computing");
       saves->stand_at(3, "saving");
       saves->set_time_limit(0.5);
       if (last(world)) std::this_thread::sleep_for(std::chrono::seconds(30));
       return all_reduce_value(*saves, 1.0), 0;
     }},
    {"split_alone",
     [](World& world) {
       world.all().set_time_limit(0.5);
       if (last(world)) std::this_thread::sleep_for(std::chrono::seconds(30));
       return world.all().split(0, 0)->size() > 0 ? 0 : 1;
     }},
    {"another_alone",
     [](World& world) {
       world.all().set_time_limit(0.5);
       if (last(world)) std::this_thread::sleep_for(std::chrono::seconds(30));
       return world.another("saves")->size() > 0 ? 0 : 1;
     }},
    {"timeout_on_all",
     [](World& world) {
       world.all().set_time_limit(0.5);
       OwnedTensor x({1 << 20}, DType::f32);
       world.all().recv(x, world.rank() ^ 1);
       return 0;
     }},
    {"other_sizes",
     [](World& world) {
       OwnedTensor x({100 + world.rank()}, DType::f32);
       world.all().all_reduce(x);
       return 0;
     }},
    {"slow_then_fine",
     [](World& world) {
       if (last(world)) std::this_thread::sleep_for(std::chrono::seconds(4));
       return 0;
     }},
    {"slow_then_code_3",
     [](World& world) {
       if (last(world)) {
         std::this_thread::sleep_for(std::chrono::seconds(4));
         std::printf("keel: the slow one's last line\n");
       }
       return 3;
     }},
    {"code_3_and_error",
     [](World& world) -> int {
       if (!last(world)) return 3;
       throw input_error("beside a code");
     }},
    {"end_all_on_all",
     [](World& world) -> int {
       world.all().barrier();
       if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
       end_all_ranks(input_error("from everywhere"));
     }},
    {"fine_and_late_error",
     [](World& world) {
       if (!last(world)) return 0;
       std::this_thread::sleep_for(std::chrono::seconds(1));
       throw input_error("late");
     }},
    {"different_builds",
     [](World& world) {
       require_same(world.all(), "build", last(world) ? "new" : "old");
       return 0;
     }},
    {"threads", threads_line},
    {"twenty_steps", twenty_steps},
};

}  // namespace
}  // namespace keel::comm

int main(int, char** argv) {
  const std::string name = argv[1];
  keel::comm::WorldOptions options;
  if (name == "late_start") {  // MPI is up, but one rank does not come
    int provided = 0, rank = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    options.start_limit_seconds = 0.5;
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
  }
  return keel::comm::run(options,
                         name == "late_start" ? [](keel::comm::World&) { return 0; } : keel::comm::kCases.at(name));
}
