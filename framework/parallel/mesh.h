// World = tensor (fastest) x data (slowest). Context and pipeline will lie between and after: tensor x context x data x
// pipeline, experts as a second view of context x data.
#pragma once

#include <map>
#include <memory>

#include "framework/comm/communicator.h"
#include "framework/nn/parameter.h"

namespace keel::parallel {

class Mesh {
 public:
  // Collective over `world`, whose size is a multiple of `tensor_size` (config::check_layout says so before).
  Mesh(comm::Communicator& world, int tensor_size);

  comm::Communicator& world() const { return world_; }
  comm::Communicator& tensor() const { return *tensor_; }  // ranks that share a model's heads
  comm::Communicator& data() const { return *data_; }      // ranks that hold the same shard
  nn::AxisPosition tensor_position() const { return {tensor_->rank(), tensor_->size()}; }
  nn::AxisPosition data_position() const { return {data_->rank(), data_->size()}; }
  // The `replicas` consecutive tensor ranks, this one among them, that hold the same piece. Collective at its first
  // call.
  comm::Communicator& replica_group(int replicas);

 private:
  comm::Communicator& world_;
  std::unique_ptr<comm::Communicator> tensor_, data_;
  std::map<int, std::unique_ptr<comm::Communicator>> replica_groups_;
};

}  // namespace keel::parallel
