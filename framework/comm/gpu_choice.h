// Which GPU a rank takes: one to itself.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "framework/comm/communicator.h"

namespace keel::comm {

// What a rank sees, as all ranks are told.
struct RankGpus {
  uint64_t host = 0;  // a hash of its name
  int64_t local_rank = 0, local_size = 1;
  int64_t visible = 0;                    // GPUs
  std::array<uint64_t, 2> identity = {};  // of the one that it would take
};

// The rank within the host counts; where the launcher left each rank one GPU, that one.
int64_t gpu_index(int64_t local_rank, int64_t visible);

// The first rank that would have no GPU to itself, and the lower rank that would share its GPU (-1: there is none).
struct GpuConflict {
  int rank;
  int other = -1;
};
std::optional<GpuConflict> find_gpu_conflict(std::span<const RankGpus> ranks);

// Whether every rank can have a GPU to itself. Collective over CPU tensors.
bool every_rank_has_a_gpu(Communicator& all, const std::string& host, int local_rank, int local_size);

// This rank's GPU. The same input error on all ranks where one has none to itself. Collective over CPU tensors.
Device choose_gpu(Communicator& all, const std::string& host, int local_rank, int local_size);

}  // namespace keel::comm
