#include "framework/comm/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "framework/base/error.h"

namespace keel::comm {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [&variables](const char* name) {
    auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

void check(const Variables& variables, int rank, int size) {
  check_launcher(environment_of(variables), rank, size);
}

TEST(Launcher, MoreAnnouncedThanFound) {
  EXPECT_THROW(check({{"PMI_SIZE", "4"}}, 0, 1), Error);
  EXPECT_THROW(check({{"OMPI_COMM_WORLD_SIZE", "4"}}, 1, 2), Error);
  EXPECT_THROW(check({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_NTASKS", "8"}}, 0, 1), Error);
  EXPECT_NO_THROW(check({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}}, 3, 4));
  EXPECT_NO_THROW(check({}, 0, 1));
  EXPECT_NO_THROW(check({{"PMI_SIZE", "many"}}, 0, 1));
}

TEST(Launcher, NearestLauncherDecides) {
  // mpirun of 2 ranks inside a Slurm step of 4 nodes' daemons.
  EXPECT_NO_THROW(check({{"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}}, 0, 2));
  // A batch script's own process.
  EXPECT_NO_THROW(check({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}, 0, 1));
}

TEST(Launcher, RankThatIsTooLarge) {
  EXPECT_THROW(check({{"PMI_SIZE", "1"}, {"PMI_RANK", "3"}}, 0, 1), Error);
}

cpu_set_t mask(std::initializer_list<int> cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(core, &set);
  return set;
}

TEST(Launcher, CoresAreSharedFairly) {
  auto all = mask({0, 1, 2, 3}), left = mask({0, 1}), right = mask({2, 3});
  EXPECT_EQ(fair_cores(all, std::vector{all}), 4);
  EXPECT_EQ(fair_cores(all, std::vector{all, all}), 2);
  EXPECT_EQ(fair_cores(all, std::vector(3, all)), 1);
  EXPECT_EQ(fair_cores(all, std::vector(9, all)), 1);
  EXPECT_EQ(fair_cores(left, std::vector{left, right}), 2);
  EXPECT_EQ(fair_cores(all, std::vector{all, left}), 3);  // 2 halves and 2 of its own
}

TEST(Launcher, AdviceOnlyWhenBoundToOneCoreOfSeveral) {
  EXPECT_THAT(binding_advice(1, 64, 4), testing::HasSubstr("PE=16"));
  EXPECT_EQ(binding_advice(1, 4, 4), "");
  EXPECT_EQ(binding_advice(16, 64, 4), "");
  EXPECT_EQ(binding_advice(1, 1, 1), "");
}

}  // namespace
}  // namespace keel::comm
