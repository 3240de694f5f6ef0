// The error of the lowest rank that failed becomes that of all, with its kind; nobody waits for anybody afterwards.
#include "framework/comm/agreement.h"

#include <gmock/gmock.h>

#include <new>

#include "framework/comm/mpi.h"

namespace keel::comm {
namespace {

struct Said {
  std::string message;
  ErrorKind kind = ErrorKind::internal;
};

class Agreement : public ::testing::Test {
 protected:
  // What f comes to on this rank; the ranks can still talk to each other then.
  Said said(const std::function<void()>& f) {
    Said said;
    try {
      f();
    } catch (const Error& error) {
      said = {error.what(), error.kind()};
    }
    EXPECT_EQ(all_reduce_value(*world, int64_t(1)), world->size());
    return said;
  }

  std::unique_ptr<Communicator> world = make_mpi_communicator(MPI_COMM_WORLD);
  const int last = world->size() - 1;
};

TEST_F(Agreement, NothingIsThrownWhereNobodyFails) {
  int ran = 0;
  EXPECT_EQ(said([&] { together(*world, [&] { ++ran; }); }).message, "");
  EXPECT_EQ(ran, 1);
}

TEST_F(Agreement, TheLowestFailingRankSpeaksForAll) {
  for (int lowest : {0, last}) {
    const Said one = said([&] {
      together(*world, [&] {
        if (world->rank() >= lowest) throw input_error("rank {} fails", world->rank());
      });
    });
    EXPECT_EQ(one.message, fmt::format("rank {} fails", lowest));
    EXPECT_EQ(one.kind, ErrorKind::input);
  }
}

TEST_F(Agreement, OtherExceptionsAreInternal) {
  const Said one = said([&] {
    together(*world, [&] {
      if (world->rank() == last) throw std::bad_alloc();
    });
  });
  EXPECT_THAT(one.message, ::testing::HasSubstr("out of memory: use fewer"));
  EXPECT_EQ(one.kind, ErrorKind::internal);
}

TEST_F(Agreement, Rank0WorksForAll) {
  int ran = 0;
  EXPECT_EQ(said([&] { on_rank_0(*world, [&] { ++ran; }); }).message, "");
  EXPECT_EQ(ran, world->rank() == 0);
  EXPECT_EQ(said([&] { on_rank_0(*world, [] { throw input_error("no such file"); }); }).message, "no such file");
  EXPECT_TRUE(rank_0_sees(*world, [&] { return world->rank() == 0; }));
  EXPECT_FALSE(rank_0_sees(*world, [&] { return world->rank() != 0; }));
}

TEST_F(Agreement, ARankIsNamedWhereThereAreSeveral) {
  const Said one = said([&] { naming_rank(*world, ": look there", [] { throw input_error("absent"); }); });
  const std::string place = world->size() > 1 ? fmt::format("rank {}: ", world->rank()) : "";
  EXPECT_EQ(one.message, place + "absent: look there");
}

}  // namespace
}  // namespace keel::comm
