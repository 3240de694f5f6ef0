// Ranks over NCCL: tensors of one GPU per rank. What a communicator made here promises for them, beside or instead of
// communicator.h:
//
// - Verbs run on a stream of the communicator's own, after what was started on Stream::current before start_x, so
//   buckets are reduced while backward goes on. wait() makes Stream::current wait, not the host.
// - Sums add in an order that NCCL chooses from the sizes and the machine, bf16 rounded after each addition. All ranks
//   get the same bits, and the same verbs on the same ranks, GPUs and versions give the same bits in every run; other
//   positions in a tensor, or all_reduce against reduce_scatter and all_gather, need not. For that, sums in NVLink
//   switches are off (NCCL_NVLS_ENABLE=0), which are not repeatable with every driver; set the variable to have them.
// - Verbs of different groups run side by side, in the order of the host's calls on every rank
//   (NCCL_LAUNCH_ORDER_IMPLICIT=1): without an order two groups may each wait for the other's kernels.
// - max keeps a NaN: NCCL's own drops it, so floats are compared as integers of the same order.
// - Messages start to move when one of them is first waited for or tested, all together; from then on verbs of this
//   group wait behind them. So start what belongs together first, then wait.
// - Nobody waits for ever. Whenever this thread waits for its GPU (Stream::synchronize, copy to the CPU, kernels that
//   run too far ahead) or calls poll(), test() or a verb, NCCL is asked for errors, and a verb that has not ended
//   within the time limit of its start is one. Then everything in flight is aborted and "comm timeout: ..." or "NCCL
//   failure: ..." thrown, with rank, verb and size. Where the abort itself does not end, as NCCL's may when a peer is
//   gone, what lies on the GPU is left alone, and the process ends without it.
// - Inputs, outputs and requests must not outlive the communicator; memory may be released once a verb was waited for.
//
// CPU tensors, barrier and the values and texts of communicator.h go over MPI as before.
#pragma once

#include <functional>

#include "framework/comm/communicator.h"

namespace keel::comm {

// The same ranks as `mpi`, which this takes over with its time limit, and `device` of each. `on_timeout` is called when
// a verb has taken too long, before its error is thrown. What is split from it and has one rank goes through no NCCL:
// its verbs are copies on Stream::current, or nothing.
// Collective.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> mpi, Device device,
                                                     std::string_view name = "all",
                                                     std::function<void()> on_timeout = {});

// Sums the ranks' numbers on their GPUs; an internal error where the sum is wrong or does not come in time. Collective.
void check_gpus_reach_each_other(Communicator& group, Device device);

// "2.28.9, built with 2.28.9", or empty in a build without NCCL.
std::string nccl_versions();

}  // namespace keel::comm
