// What tests may do to the NCCL stand-in.
#pragma once

#include <nccl.h>

namespace keel::cuda_host {

// From here on every live communicator of this process reports this asynchronous error, as after a broken network.
void fail_nccl(ncclResult_t error);
// From here on ncclCommAbort stops nothing and does not return, as where it waits for a peer that is gone.
void hang_nccl_aborts();

}  // namespace keel::cuda_host
