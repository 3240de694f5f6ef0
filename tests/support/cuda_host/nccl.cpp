// The stand-in for NCCL: the calls in use, with the library's own header, refused where they are wrong on one rank, and
// compared between ranks when their streams get there (nccl_exchange.cpp). Stricter than the real library where a
// mistake could pass there by luck: memory must be the communicator's device's and long enough, a communicator that
// never blocks must be asked until it is ready, and groups must end before anything else is called.
#include <fmt/format.h>
#include <mpi.h>
#include <net/if.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "tests/support/cuda_host/memory.h"
#include "tests/support/cuda_host/nccl_comm.h"
#include "tests/support/cuda_host/nccl_faults.h"

namespace keel::cuda_host {
namespace {

using State = ncclComm::State;

auto& communicators = *new std::vector<ncclComm*>;
std::atomic<bool> aborts_hang = false;
thread_local std::string last_error;
thread_local int group_depth = 0;
thread_local ncclResult_t group_error = ncclSuccess;
thread_local std::vector<Call> group_calls;

ncclResult_t refuse(ncclResult_t result, const std::string& sentence) {
  last_error = sentence;
  return result;
}

// MPI's end begins with that of the attributes of MPI_COMM_SELF.
void stop_exchanges_when_mpi_ends() {
  int key = 0;
  const auto end = [](MPI_Comm, int, void*, void*) {
    stop_exchanges();
    return int(MPI_SUCCESS);
  };
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, end, &key, nullptr);
  MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
}

// Other ranks wait for this one's device, not for its host.
void help_other_ranks() {
  static const bool started = [] {
    stop_exchanges_when_mpi_ends();
    std::thread([] {
      for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        advance_exchanges(std::chrono::milliseconds(50));
      }
    }).detach();
    return true;
  }();
  (void)started;
}

// What the id of a communicator holds.
struct Id {
  int root, number;
};

// As NCCL reads NCCL_SOCKET_IFNAME, without its "^": prefixes, or names after "=".
bool interface_exists() {
  const char* wanted = std::getenv("NCCL_SOCKET_IFNAME");
  if (!wanted || *wanted == '^') return true;
  const bool exact = *wanted == '=';
  bool found = false;
  struct if_nameindex* all = if_nameindex();
  std::istringstream list(wanted + (exact ? 1 : 0));
  for (std::string name; std::getline(list, name, ',');)
    for (const struct if_nameindex* one = all; one->if_name; ++one)
      found |= exact ? name == one->if_name : std::string_view(one->if_name).starts_with(name);
  if_freenameindex(all);
  return found;
}

bool mpi_runs() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started && !ended;
}

// Whether the communicator may be called at all.
ncclResult_t check_state(ncclComm* comm, bool may_be_busy) {
  if (std::find(communicators.begin(), communicators.end(), comm) == communicators.end())
    return refuse(ncclInvalidArgument, "no communicator is there");
  if (comm->state == State::destroyed) return refuse(ncclInvalidArgument, "the communicator was destroyed");
  if (comm->state == State::aborted) return refuse(ncclInvalidArgument, "the communicator was aborted");
  if (may_be_busy) return ncclSuccess;
  if (comm->state != State::ready) return refuse(ncclInvalidUsage, "the communicator is not ready, or was finalized");
  if (comm->async == ncclInProgress)
    return refuse(ncclInvalidUsage, "the communicator is busy: ask ncclCommGetAsyncError until it is not");
  return comm->async;
}

bool apart(const std::byte* a, uint64_t a_bytes, const std::byte* b, uint64_t b_bytes) {
  return a + a_bytes <= b || b + b_bytes <= a;
}

ncclResult_t check_memory(const ncclComm& comm, const void* data, uint64_t bytes, uint64_t width) {
  if (bytes == 0) return ncclSuccess;
  if (!lies_in(data, bytes, MemoryKind::device))
    return refuse(ncclInvalidArgument,
                  fmt::format("{} bytes at {} are not within one allocation of device memory: there is {}", bytes, data,
                              describe_address(data)));
  if (device_of_memory(data) != comm.device)
    return refuse(ncclInvalidArgument, fmt::format("memory of device {} in a communicator of device {}",
                                                   device_of_memory(data), comm.device));
  if (reinterpret_cast<uintptr_t>(data) % width != 0)
    return refuse(ncclInvalidArgument, fmt::format("{} is no multiple of {}", data, width));
  return ncclSuccess;
}

ncclResult_t check_in_place(const Call& call, uint64_t in_bytes, uint64_t out_bytes) {
  auto *in = static_cast<const std::byte*>(call.in), *out = static_cast<const std::byte*>(call.out);
  const auto rank = uint64_t(call.comm->rank);
  bool fits = in == out;
  if (call.header.verb == Verb::reduce_scatter) fits = out == in + rank * out_bytes;
  if (call.header.verb == Verb::all_gather) fits = in == out + rank * in_bytes;
  if (fits || call.is_message() || apart(in, in_bytes, out, out_bytes)) return ncclSuccess;
  return refuse(ncclInvalidArgument, "input and output overlap other than in place: " + text(call.header));
}

ncclResult_t check(const Call& call) {
  ncclResult_t result = check_state(call.comm, false);
  if (result != ncclSuccess) return result;
  const Header& header = call.header;
  const ncclComm& comm = *call.comm;
  const uint64_t width = bytes_of(header.type);
  if (width == 0) return refuse(ncclInvalidArgument, fmt::format("the type {} is not in use here", header.type));
  if (header.op != ncclSum && header.op != ncclMax)
    return refuse(ncclInvalidArgument, fmt::format("the operation {} is not in use here", header.op));
  if (header.peer < 0 || header.peer >= comm.size)
    return refuse(ncclInvalidArgument, fmt::format("rank {} of {}", header.peer, comm.size));
  if (device_of_stream(call.stream) != comm.device)
    return refuse(ncclInvalidArgument, fmt::format("a stream of device {} in a communicator of device {}",
                                                   device_of_stream(call.stream), comm.device));
  const uint64_t in_bytes = call.in_elements() * width, out_bytes = call.out_elements() * width;
  if ((result = check_memory(comm, call.in, in_bytes, width)) != ncclSuccess) return result;
  if ((result = check_memory(comm, call.out, out_bytes, width)) != ncclSuccess) return result;
  return check_in_place(call, in_bytes, out_bytes);
}

// Every other call of a communicator that never blocks comes to its stream after two questions only.
ncclResult_t issue(ncclComm& comm, cudaStream_t stream, Turn turn) {
  ++comm.in_flight;
  comm.late = !comm.late;
  if (!comm.waiting.empty() || (!comm.blocking && comm.late)) {
    comm.waiting.push_back({stream, std::move(turn)});
    comm.questions_left = 2;
    return comm.async = ncclInProgress;
  }
  return enqueue_exchange(stream, std::move(turn)) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

void hand_over_waiting(ncclComm& comm) {
  if (comm.waiting.empty() || --comm.questions_left > 0) return;
  for (auto& [stream, turn] : comm.waiting) enqueue_exchange(stream, std::move(turn));
  comm.waiting.clear();
  if (comm.async == ncclInProgress) comm.async = ncclSuccess;
}

ncclResult_t issue_messages(std::vector<Call> calls) {
  int to_self = 0;
  for (const Call& call : calls)
    if (call.header.peer == call.comm->rank) to_self += call.header.verb == Verb::send ? 1 : -1;
  if (to_self != 0) return refuse(ncclInvalidUsage, "a message to the own rank needs both ends in one group");
  return issue(*calls[0].comm, calls[0].stream, messages(calls));
}

ncclResult_t end_group() {
  const Inside inside;
  std::vector<Call> calls;
  calls.swap(group_calls);
  if (group_error != ncclSuccess) return std::exchange(group_error, ncclSuccess);
  ncclResult_t result = ncclSuccess;
  std::vector<Call> together;
  for (const Call& call : calls) {
    if (call.is_message())
      together.push_back(call);
    else
      result = issue(*call.comm, call.stream, collective(call));
    if (result != ncclSuccess && result != ncclInProgress) return result;
  }
  return together.empty() ? result : issue_messages(together);
}

ncclResult_t add(Call call) {
  const Inside inside;
  ++group_depth;
  const ncclResult_t result = check(call);
  if (result == ncclSuccess) {
    if (!call.is_message()) call.header.number = ++call.comm->collectives;
    group_calls.push_back(call);
  } else {
    group_error = result;
  }
  if (--group_depth > 0) return result;
  return end_group();
}

ncclResult_t outside_groups() {
  if (group_depth == 0) return ncclSuccess;
  return refuse(ncclInvalidUsage, fmt::format("{} groups were started and not ended", group_depth));
}

}  // namespace

uint64_t Call::in_elements() const {
  if (header.verb == Verb::recv) return 0;
  return header.verb == Verb::reduce_scatter ? header.count * uint64_t(comm->size) : header.count;
}
uint64_t Call::out_elements() const {
  if (header.verb == Verb::send) return 0;
  return header.verb == Verb::all_gather ? header.count * uint64_t(comm->size) : header.count;
}

uint64_t bytes_of(int type) {
  if (type == ncclBfloat16) return 2;
  if (type == ncclInt32 || type == ncclFloat32) return 4;
  return type == ncclInt64 || type == ncclFloat64 ? 8 : 0;
}

std::string text(const Header& header) {
  static constexpr const char* kVerbs[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "recv"};
  static constexpr const char* kTypes[] = {"", "", "int32", "", "int64", "", "", "fp32", "fp64", "bf16"};
  std::string number = header.number > 0 ? fmt::format(" number {}", header.number) : "";
  std::string sentence =
      fmt::format("{}{} of {} {} elements", kVerbs[int(header.verb)], number, header.count, kTypes[header.type]);
  if (header.verb <= Verb::reduce_scatter) sentence += header.op == ncclMax ? ", maximum" : ", sum";
  if (header.verb == Verb::broadcast) sentence += fmt::format(", root {}", header.peer);
  return sentence;
}

void fail_nccl(ncclResult_t error) {
  for (ncclComm* comm : communicators)
    if (comm->state == State::ready) comm->async = error;
}

void hang_nccl_aborts() {
  aborts_hang = true;
}

}  // namespace keel::cuda_host

using namespace keel::cuda_host;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kNames[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  return result < ncclNumResults ? kNames[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) {
  return last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* unique_id) {
  static int number = 0;
  if (!interface_exists()) return refuse(ncclInvalidUsage, "Bootstrap : no socket interface found");
  Id id{0, number++};
  if (mpi_runs()) MPI_Comm_rank(MPI_COMM_WORLD, &id.root);
  std::memset(unique_id, 0, sizeof *unique_id);
  std::memcpy(unique_id, &id, sizeof id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId unique_id, int rank,
                                    ncclConfig_t* config) {
  if (outside_groups() != ncclSuccess) return ncclInvalidUsage;
  if (size < 1 || rank < 0 || rank >= size)
    return refuse(ncclInvalidArgument, fmt::format("rank {} of {}", rank, size));
  if (!config || config->size != sizeof(ncclConfig_t) || config->magic != 0xcafebeef)
    return refuse(ncclInvalidArgument, "the configuration was not initialised");
  if (size > 1 && !mpi_runs()) return refuse(ncclSystemError, "this stand-in needs MPI for more than one rank");
  Id id;
  std::memcpy(&id, &unique_id, sizeof id);
  auto* made = new ncclComm;
  made->rank = rank;
  made->size = size;
  made->device = current_device();
  made->blocking = config->blocking != 0;
  made->root = id.root;
  made->tag = 0x100000 + 4 * (id.root * 4096 + id.number % 4096);
  communicators.push_back(made);
  *comm = made;
  if (size > 1) help_other_ranks();
  if (!made->blocking) return ncclInProgress;
  while (!meet(*made)) sched_yield();
  return made->async;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (outside_groups() != ncclSuccess) return ncclInvalidUsage;
  const ncclResult_t result = check_state(comm, true);
  if (result != ncclSuccess) return result;
  const Inside inside;
  if (comm->state == State::meeting && meet(*comm) && !comm->trouble.empty()) last_error = comm->trouble;
  hand_over_waiting(*comm);
  if (comm->state == State::finalized) {
    advance_exchanges(std::chrono::milliseconds(0));
    if (comm->in_flight == 0) comm->async = ncclSuccess;
  }
  *error = comm->async;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (outside_groups() != ncclSuccess) return ncclInvalidUsage;
  const ncclResult_t result = check_state(comm, false);
  if (result != ncclSuccess) return result;
  comm->state = State::finalized;
  return comm->async = ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (outside_groups() != ncclSuccess) return ncclInvalidUsage;
  const ncclResult_t result = check_state(comm, true);
  if (result != ncclSuccess) return result;
  if (comm->state != State::finalized || comm->async != ncclSuccess)
    return refuse(ncclInvalidUsage, "the communicator was not finalized, or is still busy with it");
  comm->state = State::destroyed;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  while (aborts_hang) std::this_thread::sleep_for(std::chrono::seconds(1));
  const ncclResult_t result = check_state(comm, true);
  if (result == ncclSuccess) comm->state = State::aborted;
  return result;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  return --group_depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return add({{Verb::all_reduce, type, op, 0, count, 0}, in, out, comm, stream});
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return add({{Verb::reduce_scatter, type, op, 0, count, 0}, in, out, comm, stream});
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({{Verb::all_gather, type, ncclSum, 0, count, 0}, in, out, comm, stream});
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({{Verb::broadcast, type, ncclSum, root, count, 0}, in, out, comm, stream});
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({{Verb::send, type, ncclSum, peer, count, 0}, in, nullptr, comm, stream});
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add({{Verb::recv, type, ncclSum, peer, count, 0}, nullptr, out, comm, stream});
}

}  // extern "C"
