// All ranks, able to exchange tensors on the device under test, as World makes them.
#pragma once

#include <mpi.h>

#include "framework/comm/mpi.h"
#include "framework/comm/nccl.h"
#include "tests/support/device.h"

namespace keel::testing {

inline std::unique_ptr<comm::Communicator> device_world() {
  auto world = comm::make_mpi_communicator(MPI_COMM_WORLD);
  if (test_device().kind != DeviceKind::cuda) return world;
  if (world->size() == 1) return comm::make_self_communicator();
  return comm::make_nccl_communicator(std::move(world), test_device());
}

}  // namespace keel::testing
