// One contract over all communicators: one rank alone, MPI, and MPI with limits so small that every message is cut and
// every sum is done in chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "framework/comm/mpi.h"
#include "framework/tensor/buffer.h"

namespace keel::comm {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Kind {
  std::string name;
  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
  std::function<std::unique_ptr<Communicator>()> make;
};

std::unique_ptr<Communicator> make_mpi() {
  return make_mpi_communicator(MPI_COMM_WORLD);
}
std::unique_ptr<Communicator> make_cut_mpi() {
  MpiOptions options;
  options.message_bytes = 1001;  // cuts through elements
  options.scratch_bytes = 4096;
  options.small_bytes = 0;
  return make_mpi_communicator(MPI_COMM_WORLD, options);
}
std::unique_ptr<Communicator> make_split_mpi() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return make_mpi()->split(0, -rank);  // all ranks, in reverse order, of a communicator that is gone
}

class Contract : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Communicator> group_ = GetParam().make();
  Communicator& group = *group_;
  const int rank = group.rank();
  const int size = group.size();
};

INSTANTIATE_TEST_SUITE_P(Kinds, Contract,
                         testing::Values(Kind{"self", make_self_communicator}, Kind{"mpi", make_mpi},
                                         Kind{"mpi_cut", make_cut_mpi}, Kind{"mpi_split", make_split_mpi}),
                         [](const auto& info) { return info.param.name; });

constexpr int64_t kSizes[] = {0, 1, 2, 7, 64, 1001, 20011};

uint32_t random_word(int rank, int64_t index) {  // two rounds of a multiplicative mixer
  uint64_t x = (uint64_t(rank) << 40) + uint64_t(index) + 1;
  for (int round = 0; round < 2; ++round) x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  return uint32_t(x >> 32);
}

// Magnitudes over 13 powers of two, so that another order or another rounding of sums shows.
template <class T>
T value(int rank, int64_t index) {
  const uint32_t random = random_word(rank, index);
  if constexpr (std::is_integral_v<T>) return T(int32_t(random) >> 4);
  return T(std::ldexp(float(random % 65537) - 32768.f, int(random >> 20) % 13 - 6));
}

template <class T>
std::vector<T> values(int rank, int64_t elements) {
  std::vector<T> x(elements);
  for (int64_t i = 0; i < elements; ++i) x[i] = value<T>(rank, i);
  return x;
}

template <class T>
Tensor view(std::vector<T>& x, int64_t begin = 0, int64_t end = -1) {
  return Tensor(x.data(), {int64_t(x.size())}, dtype_of<T>()).slice(0, begin, end < 0 ? int64_t(x.size()) : end);
}

// The definition: in rank order, bf16 in fp32 with one rounding.
template <class T>
std::vector<T> expected_sum(int size, int64_t elements) {
  using Wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  std::vector<T> sum(elements);
  for (int64_t i = 0; i < elements; ++i) {
    Wide total = value<T>(0, i);
    for (int rank = 1; rank < size; ++rank) total = total + Wide(value<T>(rank, i));
    sum[i] = T(total);
  }
  return sum;
}

template <class T>
std::vector<T> expected_max(int size, int64_t elements) {
  std::vector<T> max(elements);
  for (int64_t i = 0; i < elements; ++i) {
    max[i] = value<T>(0, i);
    for (int rank = 1; rank < size; ++rank) max[i] = std::max(max[i], value<T>(rank, i));
  }
  return max;
}

template <class T>
void expect_same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class F>
void for_all_types(F&& f) {
  f.template operator()<float>();
  f.template operator()<bf16>();
  f.template operator()<int32_t>();
  f.template operator()<int64_t>();
  f.template operator()<double>();
}

TEST_P(Contract, AllReduceAddsInRankOrder) {
  for_all_types([&]<class T>() {
    for (int64_t elements : kSizes) {
      SCOPED_TRACE(testing::Message() << name_of(dtype_of<T>()) << " " << elements);
      auto in = values<T>(rank, elements), out = in;
      group.all_reduce(view(out));
      expect_same_bits(out, expected_sum<T>(size, elements));
      std::vector<T> other(elements);
      group.all_reduce(view(other), view(in));
      expect_same_bits(other, out);
      expect_same_bits(in, values<T>(rank, elements));
      group.all_reduce(view(in), Reduction::max);
      expect_same_bits(in, expected_max<T>(size, elements));
    }
  });
}

// Many chunks at the default limits, and a last block that is shorter than the others.
TEST_P(Contract, LongSumsAreTheSame) {
  auto x = values<float>(rank, 600011);
  group.all_reduce(view(x));
  expect_same_bits(x, expected_sum<float>(size, 600011));
}

TEST_P(Contract, ReduceScatterAndAllGatherMakeAnAllReduce) {
  for_all_types([&]<class T>() {
    for (int64_t block : kSizes) {
      SCOPED_TRACE(testing::Message() << name_of(dtype_of<T>()) << " " << block);
      auto in = values<T>(rank, block * size), whole = in;
      std::vector<T> own(block), gathered(block * size);
      group.reduce_scatter(view(own), view(in));
      expect_same_bits(in, whole);
      group.all_gather(view(gathered), view(own));
      expect_same_bits(gathered, expected_sum<T>(size, block * size));
      group.all_reduce(view(whole));
      expect_same_bits(gathered, whole);
    }
  });
}

// The own block of the whole tensor may be output of a reduce_scatter and input of an all_gather.
TEST_P(Contract, OwnBlockMayBeInPlace) {
  for (int64_t block : kSizes) {
    auto x = values<bf16>(rank, block * size);
    Tensor own = view(x, rank * block, (rank + 1) * block);
    group.reduce_scatter(own, view(x));
    group.all_gather(view(x), own);
    expect_same_bits(x, expected_sum<bf16>(size, block * size));
  }
}

TEST_P(Contract, AllGatherKeepsRankOrder) {
  for_all_types([&]<class T>() {
    for (int64_t elements : kSizes) {
      auto in = values<T>(rank, elements);
      std::vector<T> out(elements * size), expected;
      group.all_gather(view(out), view(in));
      for (int from = 0; from < size; ++from)
        for (T x : values<T>(from, elements)) expected.push_back(x);
      expect_same_bits(out, expected);
    }
  });
}

TEST_P(Contract, AllToAllTransposesBlocks) {
  for_all_types([&]<class T>() {
    for (int64_t block : kSizes) {
      auto in = values<T>(rank, block * size);
      std::vector<T> out(block * size), expected;
      group.all_to_all(view(out), view(in));
      for (int from = 0; from < size; ++from)
        for (int64_t i = 0; i < block; ++i) expected.push_back(value<T>(from, rank * block + i));
      expect_same_bits(out, expected);
    }
  });
}

TEST_P(Contract, BroadcastFromEachRoot) {
  for (int root = 0; root < size; ++root) {
    for (int64_t elements : {int64_t(0), int64_t(1), int64_t(1001), int64_t(300001)}) {
      auto x = values<float>(rank, elements);
      group.broadcast(view(x), root);
      expect_same_bits(x, values<float>(root, elements));
    }
  }
}

TEST_P(Contract, MessagesArriveInOrder) {
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  for (int64_t elements : kSizes) {
    auto first = values<double>(rank, elements), second = values<double>(rank + 1000, elements + 1);
    std::vector<double> a(elements), b(elements + 1);
    Request send_first = group.start_send(view(first), next), send_second = group.start_send(view(second), next);
    Request get_first = group.start_recv(view(a), previous), get_second = group.start_recv(view(b), previous);
    get_second.wait();
    get_first.wait();
    send_second.wait();
    send_first.wait();
    expect_same_bits(a, values<double>(previous, elements));
    expect_same_bits(b, values<double>(previous + 1000, elements + 1));
  }
}

TEST_P(Contract, RankMaySendToItself) {
  for (bool send_first : {true, false}) {
    std::vector<int32_t> out(1001);
    auto in = values<int32_t>(rank, 1001);
    Request one = send_first ? group.start_send(view(in), rank) : group.start_recv(view(out), rank);
    Request other = send_first ? group.start_recv(view(out), rank) : group.start_send(view(in), rank);
    other.wait();
    one.wait();
    expect_same_bits(out, in);
  }
}

// Rounded after every addition these sums stay at 1; added in fp32 they do not.
TEST_P(Contract, Bf16SumsRoundOnce) {
  for (int64_t elements : {1, 20011}) {
    std::vector<bf16> x(elements, bf16(rank == 0 ? 1.f : 0.375f * 0x1p-7f));
    group.all_reduce(view(x));
    float expected = size < 3 ? 1.f : 1.f + std::nearbyint(0.375f * float(size - 1)) * 0x1p-7f;
    for (bf16 sum : x) ASSERT_EQ(float(sum), expected);
  }
}

TEST_P(Contract, MaximumKeepsNan) {
  for (int64_t elements : {5, 20011}) {
    for (int bad = 0; bad < size; ++bad) {
      std::vector<float> x(elements, float(rank) - 100.f);
      if (rank == bad) x[elements / 2] = std::nanf("");
      group.all_reduce(view(x), Reduction::max);
      EXPECT_TRUE(std::isnan(x[elements / 2]));
      EXPECT_EQ(x[0], float(size - 1) - 100.f);
    }
  }
}

TEST_P(Contract, WaitsMayComeInAnyOrder) {
  constexpr int kVerbs = 8;
  std::vector<std::vector<float>> sums, blocks, gathered;
  std::vector<Request> requests;
  for (int i = 0; i < kVerbs; ++i) {
    const int64_t elements = 1 + 3001 * i;
    sums.push_back(values<float>(rank, elements));
    blocks.push_back(values<float>(rank + i, elements));
    gathered.emplace_back(elements * size);
  }
  for (int i = 0; i < kVerbs; ++i) {
    requests.push_back(group.start_all_reduce(view(sums[i]), view(sums[i])));
    requests.push_back(group.start_all_gather(view(gathered[i]), view(blocks[i])));
  }
  std::vector<int> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(uint32_t(rank)));
  for (int i : order) requests[i].wait();
  for (int i = 0; i < kVerbs; ++i) {
    expect_same_bits(sums[i], expected_sum<float>(size, 1 + 3001 * i));
    expect_same_bits(std::vector<float>(gathered[i].end() - (1 + 3001 * i), gathered[i].end()),
                     values<float>(size - 1 + i, 1 + 3001 * i));
  }
}

// The message that was started first comes last: everything started later must go on meanwhile.
TEST_P(Contract, WaitingMessageHoldsUpNothing) {
  auto message = values<float>(rank, 5), x = values<float>(rank, 100003);
  std::vector<float> answer(5);
  Request receive = group.start_recv(view(answer), (rank + 1) % size);
  group.all_reduce(view(x));
  Request send = group.start_send(view(message), (rank + size - 1) % size);
  receive.wait();
  send.wait();
  expect_same_bits(x, expected_sum<float>(size, 100003));
  expect_same_bits(answer, values<float>((rank + 1) % size, 5));
}

// Tensor groups of two neighbours and data groups across them: started in both, waited for in different orders.
TEST_P(Contract, SplitsIntoTensorAndDataGroups) {
  auto tensor = group.split(rank / 2, rank, "tensor");
  auto data = group.split(rank % 2, rank, "data");
  EXPECT_EQ(tensor->rank(), rank % 2);
  EXPECT_EQ(tensor->size(), std::min(2, size - rank / 2 * 2));
  EXPECT_EQ(data->rank(), rank / 2);
  EXPECT_EQ(data->size(), (size + 1 - rank % 2) / 2);
  std::vector<int64_t> in_tensor(5003, rank), in_data(5003, rank);
  Request first = tensor->start_all_reduce(view(in_tensor), view(in_tensor));
  Request second = data->start_all_reduce(view(in_data), view(in_data));
  if (rank % 2) std::swap(first, second);
  second.wait();
  first.wait();
  int64_t tensor_sum = 0, data_sum = 0;
  for (int other = 0; other < size; ++other) {
    if (other / 2 == rank / 2) tensor_sum += other;
    if (other % 2 == rank % 2) data_sum += other;
  }
  EXPECT_THAT(in_tensor, testing::Each(tensor_sum));
  EXPECT_THAT(in_data, testing::Each(data_sum));
}

TEST_P(Contract, SplitOrdersByKey) {
  auto reversed = group.split(0, -rank);
  EXPECT_EQ(reversed->rank(), size - 1 - rank);
  EXPECT_THROW(group.split(-1, 0), Error);
}

TEST_P(Contract, TestingEndsARequest) {
  auto x = values<float>(rank, 30011);
  Request request = group.start_all_reduce(view(x), view(x));
  while (!request.test()) group.poll();
  EXPECT_TRUE(request.test());
  request.wait();
  expect_same_bits(x, expected_sum<float>(size, 30011));
}

TEST_P(Contract, DestroyingOrReplacingARequestWaits) {
  auto x = values<float>(rank, 30011), y = x;
  { Request request = group.start_all_reduce(view(x), view(x)); }
  expect_same_bits(x, expected_sum<float>(size, 30011));
  Request request = group.start_all_reduce(view(y), view(y));
  request = Request();
  expect_same_bits(y, x);
}

TEST_P(Contract, BarrierMeets) {
  for (int i = 0; i < 3; ++i) group.barrier();
}

TEST_P(Contract, MetaTensorsAreCheckedAndNothingIsSent) {
  Device meta{DeviceKind::meta};
  Tensor x(nullptr, {6, 4}, DType::bf16, meta), whole(nullptr, {6 * size, 4}, DType::bf16, meta);
  if (rank == 0) {  // alone: a message would hang
    group.all_reduce(x);
    group.reduce_scatter(x, whole);
    group.all_gather(whole, x);
    group.all_to_all(whole, whole);
    group.broadcast(x, 0);
    group.send(x, size - 1);
    group.recv(x, size - 1);
  }
  EXPECT_THROW(group.reduce_scatter(x, Tensor(nullptr, {6 * size + 1}, DType::bf16, meta)), Error);
}

TEST_P(Contract, RefusesWrongArguments) {
  std::vector<float> x(12 * size), y(12 * size);
  std::vector<double> z(12 * size);
  auto strided = view(x).reshaped({2, 6 * size}).slice(1, 0, 2);
  EXPECT_THAT([&] { group.all_reduce(view(x), view(z)); },
              ThrowsMessage<Error>(HasSubstr("output is fp32, input fp64")));
  EXPECT_THAT([&] { group.all_reduce(view(x), view(y, 1)); },
              ThrowsMessage<Error>(HasSubstr(fmt::format("1 * {} output elements", 12 * size))));
  EXPECT_THAT([&] { group.all_reduce(strided); }, ThrowsMessage<Error>(HasSubstr("not contiguous")));
  EXPECT_THAT([&] { group.all_reduce(view(x, 1), view(x, 0, 12 * size - 1)); },
              ThrowsMessage<Error>(HasSubstr("overlap in part")));
  EXPECT_THAT([&] { group.reduce_scatter(view(y, 0, 11), view(x)); },
              ThrowsMessage<Error>(HasSubstr("reduce_scatter")));
  EXPECT_THAT([&] { group.all_gather(view(x), view(y, 0, 11)); }, ThrowsMessage<Error>(HasSubstr("all_gather")));
  EXPECT_THAT([&] { group.all_to_all(view(x), view(x)); }, ThrowsMessage<Error>(HasSubstr("overlap")));
  EXPECT_THAT([&] { group.broadcast(view(x), size); }, ThrowsMessage<Error>(HasSubstr("outside a group of")));
  EXPECT_THAT([&] { group.send(view(x), -1); }, ThrowsMessage<Error>(HasSubstr("rank -1")));
  EXPECT_THAT([&] { group.recv(Tensor(), 0); }, ThrowsMessage<Error>(HasSubstr("undefined")));
  if (size == 1) return;
  EXPECT_THAT([&] { group.all_to_all(view(x, 1), view(y, 1)); }, ThrowsMessage<Error>(HasSubstr("all_to_all")));
  const int other = (rank + 1) % size;  // another rank's block
  EXPECT_THAT([&] { group.reduce_scatter(view(x, other * 12, other * 12 + 12), view(x)); },
              ThrowsMessage<Error>(HasSubstr("own block")));
  EXPECT_THAT([&] { group.all_gather(view(x), view(x, other * 12, other * 12 + 12)); },
              ThrowsMessage<Error>(HasSubstr("own block")));
}

TEST_P(Contract, ValuesAndTexts) {
  EXPECT_EQ(all_reduce_value(group, int64_t(rank) + 1), size * (size + 1) / 2);
  EXPECT_EQ(all_reduce_value(group, double(rank), Reduction::max), size - 1);
  for (const std::string& text : {std::string(), std::string("three"), std::string(100001, 'x')})
    EXPECT_EQ(broadcast_text(group, rank == size - 1 ? text : "other", size - 1), text);
}

TEST_P(Contract, RequireSameNamesTheFirstRankThatDiffers) {
  require_same(group, "config", "a: 1\n");
  if (size < 3) return;
  auto differ = [&] { require_same(group, "config", rank >= 2 ? "a: 2\n" : "a: 1\n"); };
  EXPECT_THAT(differ, ThrowsMessage<Error>(HasSubstr("config differs between ranks: rank 2 ")));
}

}  // namespace
}  // namespace keel::comm
