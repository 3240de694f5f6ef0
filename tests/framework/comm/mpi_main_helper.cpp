// Tests that fail on purpose; ending_test.cpp looks at what mpi_main.cpp makes of them.
#include <gtest/gtest.h>
#include <mpi.h>

#include <stdexcept>

namespace {

int rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

TEST(MpiMain, Passes) {}

TEST(MpiMain, FailsOnRank1) {
  EXPECT_EQ(rank(), 0) << "this rank is wrong";
}

TEST(MpiMain, ThrowsOnRank1) {
  if (rank() == 1) throw std::runtime_error("thrown alone");
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
