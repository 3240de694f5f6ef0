#include "framework/comm/gpu_choice.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "framework/base/build_config.h"
#include "framework/base/rng.h"
#include "framework/tensor/gpu_architectures.h"

namespace keel::comm {
namespace {

// The process's first call of CUDA, which reads the variable once. Where kernels are loaded at their first launch, that
// launch may wait for the whole GPU, and for another rank in it, where no guard looks (tensor/wait_guard.h).
RankGpus seen_here(const Communicator& all, const std::string& host, int local_rank, int local_size) {
  if (all.size() > 1) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  RankGpus mine{key_of(0, host), local_rank, local_size, cuda::gpu_count()};
  if (mine.visible > 0) mine.first = cuda::describe_gpu(0).identity;
  if (local_rank < mine.visible) mine.with_number = cuda::describe_gpu(local_rank).identity;
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

std::string sentence_of(const GpuConflict& conflict, const RankGpus& rank, const std::string& host) {
  if (conflict.other >= 0)
    return fmt::format(
        "{} ranks on host {}, {} visible to each: ranks {} and {} would share one GPU, which NCCL does not allow: "
        "start "
        "one rank per GPU, or let each rank see another one (CUDA_VISIBLE_DEVICES)",
        rank.local_size, host, rank.visible == 1 ? "1 device" : fmt::format("{} devices", rank.visible), conflict.other,
        conflict.rank);
  if (const std::string driver = cuda::old_driver(); !driver.empty()) return fmt::format("host {}: {}", host, driver);
  return fmt::format(
      "{} on host {}, {} device{} visible: start one rank per GPU there (mpirun --map-by ppr:N:node), make more "
      "visible (CUDA_VISIBLE_DEVICES), or choose device: cpu",
      rank.local_size == 1 ? "1 rank" : fmt::format("{} ranks", rank.local_size), host, rank.visible,
      rank.visible == 1 ? "" : "s");
}

// Of the first rank that has none to itself, or one that the build has no kernels for; "" where all is well.
std::string why_not(Communicator& all, std::span<const RankGpus> ranks, const std::string& host) {
  const RankGpus& mine = ranks[size_t(all.rank())];
  if (const auto conflict = find_gpu_conflict(ranks)) {
    const std::string own = all.rank() == conflict->rank ? sentence_of(*conflict, mine, host) : "";
    return broadcast_text(all, own, conflict->rank);
  }
  const int64_t index = gpu_indices(ranks)[size_t(all.rank())];
  std::string own = missing_kernels(cuda::describe_gpu(int(index)), KEEL_CUDA_COMPILER);
  if (!own.empty()) own = fmt::format("host {}: {}", host, own);
  const auto first = int(lowest_rank_where(all, !own.empty()));
  return first < all.size() ? broadcast_text(all, own, first) : "";
}

}  // namespace

std::vector<int64_t> gpu_indices(std::span<const RankGpus> ranks) {
  std::set<std::pair<uint64_t, GpuIdentity>> firsts;
  std::set<uint64_t> sharing;  // hosts
  for (const RankGpus& rank : ranks)
    if (!firsts.insert({rank.host, rank.first}).second) sharing.insert(rank.host);
  std::vector<int64_t> indices;
  for (const RankGpus& rank : ranks)
    indices.push_back(rank.visible == 1 || !sharing.contains(rank.host) ? 0 : rank.local_rank);
  return indices;
}

std::optional<GpuConflict> find_gpu_conflict(std::span<const RankGpus> ranks) {
  const std::vector<int64_t> indices = gpu_indices(ranks);
  std::map<std::pair<uint64_t, GpuIdentity>, int> taken;
  for (int rank = 0; rank < int(ranks.size()); ++rank) {
    const RankGpus& mine = ranks[size_t(rank)];
    const int64_t index = indices[size_t(rank)];
    if (index >= mine.visible) return GpuConflict{rank};
    const auto [other, alone] = taken.insert({{mine.host, index == 0 ? mine.first : mine.with_number}, rank});
    if (!alone) return GpuConflict{rank, other->second};
  }
  return std::nullopt;
}

GpuLack find_gpu_lack(Communicator& all, const std::string& host, int local_rank, int local_size) {
  if (!KEEL_HAS_CUDA) return {"this build has no CUDA"};
  const std::vector<RankGpus> ranks = gather(all, seen_here(all, host, local_rank, local_size));
  const std::string why = why_not(all, ranks, host);
  const bool any = std::ranges::any_of(ranks, [](const RankGpus& rank) { return rank.visible > 0; });
  return {why, any || lowest_rank_where(all, !cuda::old_driver().empty()) < all.size()};
}

Device choose_gpu(Communicator& all, const std::string& host, int local_rank, int local_size) {
  if (!KEEL_HAS_CUDA)
    throw input_error("this build has no CUDA: configure with the preset cuda, or choose device: cpu");
  const std::vector<RankGpus> ranks = gather(all, seen_here(all, host, local_rank, local_size));
  if (const std::string why = why_not(all, ranks, host); !why.empty()) throw input_error("{}", why);
  return {DeviceKind::cuda, int(gpu_indices(ranks)[size_t(all.rank())])};
}

}  // namespace keel::comm
