#include "framework/parallel/mesh.h"

namespace keel::parallel {

Mesh::Mesh(comm::Communicator& world, int tensor_size) : world_(world) {
  require(world.size() % tensor_size == 0, "{} ranks are no multiple of a tensor size of {}", world.size(),
          tensor_size);
  tensor_ = world.split(world.rank() / tensor_size, world.rank(), "tensor");
  data_ = world.split(world.rank() % tensor_size, world.rank(), "data");
}

comm::Communicator& Mesh::replica_group(int replicas) {
  auto& group = replica_groups_[replicas];
  if (!group) group = tensor_->split(tensor_->rank() / replicas, tensor_->rank(), "kv replicas");
  return *group;
}

}  // namespace keel::parallel
