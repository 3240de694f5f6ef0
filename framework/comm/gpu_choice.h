// Which GPU a rank takes: one to itself.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/comm/communicator.h"

namespace keel::comm {

using GpuIdentity = std::array<uint64_t, 2>;

// What a rank sees, as all ranks are told.
struct RankGpus {
  uint64_t host = 0;  // a hash of its name
  int64_t local_rank = 0, local_size = 1;
  int64_t visible = 0;           // GPUs
  GpuIdentity first = {};        // of the first of them
  GpuIdentity with_number = {};  // of the one with the rank's number within the host, where there is one
};

// Which of its visible GPUs each rank takes. Where the launcher let each rank of a host begin with another one (one for
// each, or --gpus-per-task), the first; else the one with the rank's number, or the only one.
std::vector<int64_t> gpu_indices(std::span<const RankGpus> ranks);

// The first rank that would have no GPU to itself, and the lower rank that would share its GPU (-1: there is none).
struct GpuConflict {
  int rank;
  int other = -1;
};
std::optional<GpuConflict> find_gpu_conflict(std::span<const RankGpus> ranks);

// Why not every rank can have a GPU to itself that the build has kernels for, "" where it can; and whether there is any
// GPU, or a driver too old for one. The same on all ranks. Collective over CPU tensors.
struct GpuLack {
  std::string why;
  bool surprising = false;
};
GpuLack find_gpu_lack(Communicator& all, const std::string& host, int local_rank, int local_size);

// This rank's GPU. The same input error on all ranks where one has none that it could use. Collective over CPU tensors.
Device choose_gpu(Communicator& all, const std::string& host, int local_rank, int local_size);

}  // namespace keel::comm
