#include "framework/comm/gpu_choice.h"

#include <vector>

#include "framework/base/build_config.h"
#include "framework/base/rng.h"
#include "framework/tensor/gpu.h"

namespace keel::comm {
namespace {

RankGpus seen_here(const std::string& host, int local_rank, int local_size) {
  RankGpus mine{key_of(0, host), local_rank, local_size, cuda::gpu_count(), {}};
  const int64_t index = gpu_index(local_rank, mine.visible);
  if (index < mine.visible) mine.identity = cuda::describe_gpu(int(index)).identity;
  return mine;
}

std::vector<RankGpus> gather(Communicator& all, const RankGpus& mine) {
  static_assert(sizeof(RankGpus) % sizeof(int64_t) == 0);
  constexpr auto kWords = int64_t(sizeof(RankGpus) / sizeof(int64_t));
  std::vector<RankGpus> ranks(size_t(all.size()));
  RankGpus sent = mine;
  all.all_gather(Tensor(ranks.data(), {all.size(), kWords}, DType::i64), Tensor(&sent, {kWords}, DType::i64));
  return ranks;
}

Error refusal(const GpuConflict& conflict, const RankGpus& rank, const std::string& host) {
  if (conflict.other >= 0)
    return input_error(
        "{} ranks on host {}, {} visible to each: ranks {} and {} would share one GPU, which NCCL does not allow: "
        "start "
        "one rank per GPU, or let each rank see another one (CUDA_VISIBLE_DEVICES)",
        rank.local_size, host, rank.visible == 1 ? "1 device" : fmt::format("{} devices", rank.visible), conflict.other,
        conflict.rank);
  return input_error(
      "{} on host {}, {} device{} visible: start one rank per GPU there (mpirun --map-by ppr:N:node), make more "
      "visible (CUDA_VISIBLE_DEVICES), or choose device: cpu",
      rank.local_size == 1 ? "1 rank" : fmt::format("{} ranks", rank.local_size), host, rank.visible,
      rank.visible == 1 ? "" : "s");
}

}  // namespace

int64_t gpu_index(int64_t local_rank, int64_t visible) {
  return visible == 1 ? 0 : local_rank;
}

std::optional<GpuConflict> find_gpu_conflict(std::span<const RankGpus> ranks) {
  for (int rank = 0; rank < int(ranks.size()); ++rank) {
    const RankGpus& mine = ranks[size_t(rank)];
    if (gpu_index(mine.local_rank, mine.visible) >= mine.visible) return GpuConflict{rank};
    for (int other = 0; other < rank; ++other)
      if (ranks[size_t(other)].host == mine.host && ranks[size_t(other)].identity == mine.identity)
        return GpuConflict{rank, other};
  }
  return std::nullopt;
}

bool every_rank_has_a_gpu(Communicator& all, const std::string& host, int local_rank, int local_size) {
  return !find_gpu_conflict(gather(all, seen_here(host, local_rank, local_size)));
}

Device choose_gpu(Communicator& all, const std::string& host, int local_rank, int local_size) {
  if (!KEEL_HAS_CUDA)
    throw input_error("this build has no CUDA: configure with the preset cuda, or choose device: cpu");
  const RankGpus mine = seen_here(host, local_rank, local_size);
  const std::vector<RankGpus> ranks = gather(all, mine);
  if (const auto conflict = find_gpu_conflict(ranks)) {
    const std::string where = broadcast_text(all, host, conflict->rank);
    throw refusal(*conflict, ranks[size_t(conflict->rank)], where);
  }
  return {DeviceKind::cuda, int(gpu_index(local_rank, mine.visible))};
}

}  // namespace keel::comm
