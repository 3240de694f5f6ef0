#include "framework/parallel/replica_check.h"

#include <cstring>
#include <vector>

#include "framework/tensor/copy.h"

namespace keel::parallel {
namespace {

// FNV-1a by 64-bit words.
int64_t hash_of(ConstTensor tensor) {
  const HostTensor host(tensor);
  const auto* bytes = static_cast<const std::byte*>(host.tensor().data());
  const int64_t size_bytes = tensor.elements() * bytes_of(tensor.dtype());
  uint64_t hash = 14695981039346656037ull;
  for (int64_t at = 0; at < size_bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, size_t(std::min<int64_t>(8, size_bytes - at)));
    hash = (hash ^ word) * 1099511628211ull;
    hash ^= hash >> 29;
  }
  return int64_t(hash);
}

struct Hashes {
  std::vector<const nn::Parameter*> parameters;
  std::vector<int64_t> values;
};

// "" or what differs, the same text on all ranks of the group.
std::string difference(comm::Communicator& group, int world_rank, const Hashes& own) {
  // The largest of h and of ~h, which is ~ of the smallest: all the same where both are one value.
  std::vector<int64_t> extremes = own.values;
  for (int64_t hash : own.values) extremes.push_back(~hash);
  group.all_reduce(Tensor(extremes.data(), {int64_t(extremes.size())}, DType::i64), comm::Reduction::max);
  for (size_t i = 0; i < own.values.size(); ++i) {
    if (extremes[i] == ~extremes[own.values.size() + i]) continue;
    const int64_t mine[] = {own.values[i], world_rank};
    std::vector<int64_t> all(size_t(2 * group.size()));
    group.all_gather(Tensor(all.data(), {2 * group.size()}, DType::i64),
                     Tensor(const_cast<int64_t*>(mine), {2}, DType::i64));
    size_t other = 0;
    while (all[other] == all[0]) other += 2;
    return fmt::format("'{}' of rank {} and of rank {}", own.parameters[i]->spec.name, all[1], all[other + 1]);
  }
  return {};
}

bool has_replicas(const nn::Parameter& parameter) {
  return parameter.placement.kind != nn::Placement::Kind::shard;
}

}  // namespace

void require_same_replicas(nn::ParameterSet& parameters, Mesh& mesh, int64_t step) {
  Hashes all, over_tensor;
  std::map<int, Hashes> over_replicas;
  for (const nn::Parameter& parameter : parameters.all()) {
    auto add = [&, hash = hash_of(parameter.compute)](Hashes& to) {
      to.parameters.push_back(&parameter);
      to.values.push_back(hash);
    };
    add(all);
    if (has_replicas(parameter)) add(over_tensor);
    if (!has_replicas(parameter) && parameter.placement.replicas > 1) add(over_replicas[parameter.placement.replicas]);
  }
  const int rank = mesh.world().rank();
  std::string found = difference(mesh.data(), rank, all);
  auto also = [&](comm::Communicator& group, const Hashes& hashes) {
    const std::string more = difference(group, rank, hashes);
    if (found.empty()) found = more;
  };
  also(mesh.tensor(), over_tensor);
  for (const auto& [replicas, hashes] : over_replicas) also(mesh.replica_group(replicas), hashes);

  const int64_t first = comm::lowest_rank_where(mesh.world(), !found.empty());
  if (first == mesh.world().size()) return;
  found = comm::broadcast_text(mesh.world(), found, int(first));
  throw Error(ErrorKind::internal,
              fmt::format("step {}: the weights {} differ, though they must be the same bits: a fault of memory or "
                          "network, or ranks with different libraries. Go on from the last checkpoint, without that "
                          "host if it happens again",
                          step, found));
}

}  // namespace keel::parallel
