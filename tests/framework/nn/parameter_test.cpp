#include "framework/nn/parameter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace keel::nn {
namespace {

// The four kinds of placement; k has half as many pieces as ranks.
void declare(ParameterSet& set, int ranks = 1) {
  const Init normal{Init::Kind::normal, 0.02};
  set.declare({.name = "q.weight", .shape = {8, 6}, .init = normal, .decayed = true, .product = true}).placement =
      Placement::sharded(0);
  set.declare({.name = "k.weight", .shape = {4, 6}, .init = normal, .decayed = true, .product = true, .beside = true})
      .placement = Placement::sharded(0, std::max(1, ranks / 2));
  set.declare({.name = "out.weight", .shape = {6, 8}, .init = normal, .decayed = true, .product = true}).placement =
      Placement::sharded(1);
  set.declare({.name = "gain", .shape = {5}, .init = {Init::Kind::constant, 1}}).placement = Placement::partial();
}

std::vector<float> gathered(const std::string& name, int ranks) {
  std::vector<float> whole;
  for (int rank = 0; rank < ranks; ++rank) {
    ParameterSet set;
    declare(set);
    set.allocate(
        {.device = {}, .activation = DType::f32, .tensor = {rank, ranks}, .data_ranks = 3, .bucket_elements = 40});
    set.initialise(7);
    const Parameter& parameter = set.at(name);
    whole.resize(size_t(parameter.spec.shape.elements()), NAN);
    for_each_run(parameter, [&](int64_t logical, int64_t local, int64_t count) {
      for (int64_t i = 0; i < count; ++i) whole[size_t(logical + i)] = parameter.master.as<float>()[local + i];
    });
  }
  return whole;
}

TEST(Parameters, InitialValuesDoNotDependOnTheLayout) {  // CASES R65
  for (const char* name : {"q.weight", "k.weight", "out.weight", "gain"}) {
    const std::vector<float> one = gathered(name, 1);
    EXPECT_EQ(one, gathered(name, 2)) << name;
    EXPECT_EQ(one, gathered(name, 4)) << name;
  }
  const std::vector<float> q = gathered("q.weight", 1);
  EXPECT_NE(std::vector(q.begin(), q.begin() + 24), std::vector(q.begin() + 24, q.end())) << "halves are no copies";
  EXPECT_NE(std::vector(q.begin(), q.begin() + 24), gathered("k.weight", 1));
}

TEST(Parameters, BucketsDivideAmongDataRanksAndNeighboursStayAdjacent) {
  ParameterSet set;
  declare(set);
  set.allocate({.device = {}, .activation = DType::bf16, .tensor = {}, .data_ranks = 3, .bucket_elements = 60});
  ASSERT_EQ(set.arenas().size(), 2u);
  for (const ParameterArena& arena : set.arenas()) {
    int64_t begin = 0;
    for (int64_t end : arena.bucket_ends) {
      EXPECT_EQ((end - begin) % 48, 0);
      begin = end;
    }
    EXPECT_EQ(begin, arena.elements);
  }
  Parameter* side_by_side[] = {&set.at("q.weight"), &set.at("k.weight")};
  EXPECT_EQ(stacked(side_by_side, &Parameter::compute).shape(), (Shape{12, 6}));
  Parameter* apart[] = {&set.at("q.weight"), &set.at("out.weight")};
  EXPECT_THROW(stacked(apart, &Parameter::compute), Error);
}

// What lies beside another follows it at once; everything else begins at a multiple of 16 bytes, after padding of 0.
TEST(Parameters, BeginWhereKernelsLoad16Bytes) {
  ParameterSet set;
  for (const char* name : {"scale", "gain", "table"})
    set.declare({.name = name, .shape = {3, 5}, .init = {Init::Kind::constant, 1}, .product = name[0] == 't'});
  set.declare({.name = "q.bias", .shape = {7}});
  set.declare({.name = "k.bias", .shape = {2}, .beside = true});
  set.declare({.name = "last", .shape = {1}, .init = {Init::Kind::constant, 1}});
  set.allocate({.device = {}, .activation = DType::bf16});
  set.initialise(1);
  for (const Parameter& parameter : set.all())
    if (!parameter.spec.beside) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(parameter.compute.data()) % 16, 0) << parameter.spec.name;
    }
  Parameter* biases[] = {&set.at("q.bias"), &set.at("k.bias")};
  EXPECT_EQ(stacked(biases, &Parameter::compute).shape(), (Shape{9}));
  const ParameterArena& arena = set.arenas()[size_t(set.at("last").arena)];
  double sum = 0;
  for (int64_t i = 0; i < arena.elements; ++i) sum += arena.master.as<float>()[i];
  EXPECT_EQ(sum, 15 + 15 + 1);
}

TEST(Parameters, TruncatedValuesStayWithinThreeSigma) {
  ParameterSet set;
  set.declare({.name = "w",
               .shape = {200, 200},
               .init = {Init::Kind::truncated_3sigma, 0.5},
               .decayed = true,
               .product = true});
  set.allocate({});
  set.initialise(1);
  double sum = 0, squares = 0, largest = 0;
  for (int64_t i = 0; i < 40000; ++i) {
    const double x = set.at("w").master.as<float>()[i];
    sum += x, squares += x * x, largest = std::max(largest, std::abs(x));
  }
  EXPECT_NEAR(sum / 40000, 0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / 40000), 0.5 * 0.98658, 0.01);  // the deviation of a normal cut at 3 sigma
  EXPECT_LE(largest, 1.5);
  EXPECT_GT(largest, 1.4);
}

TEST(Parameters, SizesThatDoNotDivideAreNamed) {
  ParameterSet set;
  declare(set);
  try {
    set.allocate({.tensor = {0, 5}});
    FAIL() << "8 rows were cut into 5";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("q.weight"), std::string::npos);
  }
}

}  // namespace
}  // namespace keel::nn
