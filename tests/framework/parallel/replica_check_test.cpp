// One bit of one replica is found and named; weights that are cut are no replicas. On 4 ranks the mesh is 2 x 2.
#include "framework/parallel/replica_check.h"

#include <gmock/gmock.h>

#include "framework/comm/mpi.h"

namespace keel::parallel {
namespace {

using ::testing::HasSubstr;

class ReplicaCheck : public ::testing::TestWithParam<DType> {
 protected:
  ReplicaCheck() : world(comm::make_mpi_communicator(MPI_COMM_WORLD)), mesh(*world, world->size() == 4 ? 2 : 1) {
    auto declare = [&](const char* name, nn::Placement placement, bool product) {
      nn::Parameter& parameter =
          parameters.declare({.name = name, .shape = {4, 6}, .init = {nn::Init::Kind::normal, 1}, .product = product});
      parameter.placement = placement;
    };
    declare("cut", nn::Placement::sharded(0), true);
    declare("gain", nn::Placement::partial(), false);
    declare("whole", nn::Placement::whole(), true);
    declare("kv", nn::Placement::sharded(0, mesh.tensor().size()), true);
    parameters.allocate({.activation = GetParam(), .tensor = mesh.tensor_position(), .data_ranks = mesh.data().size()});
    parameters.initialise(5);
    parameters.round_to_compute();
  }

  std::string message() {
    try {
      require_same_replicas(parameters, mesh, 12);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  std::unique_ptr<comm::Communicator> world;
  Mesh mesh;
  nn::ParameterSet parameters;
};

TEST_P(ReplicaCheck, EqualReplicasPass) {
  EXPECT_EQ(message(), "");
}

TEST_P(ReplicaCheck, OneBitIsFound) {
  const int last = world->size() - 1;
  for (const char* name : {"cut", "gain", "whole"}) {
    auto* bytes = static_cast<std::byte*>(const_cast<void*>(ConstTensor(parameters.at(name).compute).data()));
    if (world->rank() == last) bytes[5] ^= std::byte{1};
    const std::string text = message();
    if (world->size() > 1) {
      EXPECT_THAT(text, HasSubstr(fmt::format("'{}' of rank {} and of rank {} differ", name,
                                              last - mesh.tensor().size(), last)));
      EXPECT_THAT(text, HasSubstr("step 12"));
    } else {
      EXPECT_EQ(text, "");
    }
    if (world->rank() == last) bytes[5] ^= std::byte{1};
  }
}

// Both data ranks of one tensor rank changed alike: only the tensor group can see it.
TEST_P(ReplicaCheck, TensorRanksAreCompared) {
  if (mesh.tensor().size() == 1) GTEST_SKIP() << "one tensor rank";
  for (const char* name : {"gain", "whole", "kv"}) {
    auto* bytes = static_cast<std::byte*>(const_cast<void*>(ConstTensor(parameters.at(name).compute).data()));
    if (mesh.tensor().rank() == 1) bytes[0] ^= std::byte{1};
    EXPECT_THAT(message(), HasSubstr(fmt::format("'{}' of rank 0 and of rank 1 differ", name)));
    if (mesh.tensor().rank() == 1) bytes[0] ^= std::byte{1};
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ReplicaCheck, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace keel::parallel
