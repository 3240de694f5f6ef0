// One contract over all communicators: one rank alone, MPI, and MPI with limits so small that every message is cut and
// every sum is done in chunks. With KEEL_TEST_DEVICE=cuda: NCCL, on tensors of one GPU per rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "framework/comm/mpi.h"
#include "framework/comm/nccl.h"
#include "tests/support/device.h"

namespace keel::comm {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

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

using keel::testing::test_device;

bool on_gpu() {
  return test_device().kind == DeviceKind::cuda;
}

std::unique_ptr<Communicator> make_nccl() {
  return make_nccl_communicator(make_mpi(), test_device());
}
std::unique_ptr<Communicator> make_split_nccl() {
  return make_nccl()->split(0, -test_device().index);
}

std::vector<Kind> kinds() {
  if (on_gpu()) return {{"nccl", make_nccl}, {"nccl_split", make_split_nccl}};
  return {{"self", [] { return make_self_communicator(); }},
          {"mpi", make_mpi},
          {"mpi_cut", make_cut_mpi},
          {"mpi_split", make_split_mpi}};
}

class Contract : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Communicator> group_ = GetParam().make();
  Communicator& group = *group_;
  const int rank = group.rank();
  const int size = group.size();
};

INSTANTIATE_TEST_SUITE_P(Kinds, Contract, ::testing::ValuesIn(kinds()),
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

// Values where the communicator works.
template <class T>
class Data {
 public:
  explicit Data(int64_t elements) : owner_({elements}, dtype_of<T>(), test_device()) {}
  Data(const std::vector<T>& values) : Data(int64_t(values.size())) {
    copy(owner_, ConstTensor(values.data(), owner_.tensor.shape(), dtype_of<T>()));
  }
  std::vector<T> values() const {
    std::vector<T> values(size_t(owner_.tensor.elements()));
    copy(Tensor(values.data(), owner_.tensor.shape(), dtype_of<T>()), owner_);
    return values;
  }
  operator Tensor() const { return owner_; }
  operator ConstTensor() const { return owner_; }
  Tensor slice(int64_t begin, int64_t end) const { return owner_.tensor.slice(0, begin, end); }

 private:
  OwnedTensor owner_;
};

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
template <class T>
void expect_same_bits(const Data<T>& a, const std::vector<T>& b) {
  expect_same_bits(a.values(), b);
}

// A sum over ranks of elements [begin, begin + sum.size()): the definition's bits; of floats on GPUs any order and a
// rounding per addition, with the same bits on all ranks that have the same elements.
template <class T>
void expect_sum(Communicator& group, const std::vector<T>& sum, int64_t begin = 0) {
  const int size = group.size();
  const std::vector<T> all = expected_sum<T>(size, begin + int64_t(sum.size()));
  const std::vector<T> expected(all.begin() + begin, all.end());
  if (!on_gpu() || std::is_integral_v<T>) return expect_same_bits(sum, expected);
  const double step = std::is_same_v<T, bf16> ? 0x1p-8 : double(std::numeric_limits<T>::epsilon());
  for (size_t i = 0; i < sum.size(); ++i) {
    double magnitude = 0;
    for (int rank = 0; rank < size; ++rank) magnitude += std::abs(double(value<T>(rank, begin + int64_t(i))));
    ASSERT_NEAR(double(sum[i]), double(expected[i]), step * size * magnitude) << i;
  }
}
template <class T>
void expect_whole_sum(Communicator& group, const Data<T>& data) {
  const std::vector<T> sum = data.values();
  expect_sum(group, sum);
  require_same(group, "a sum", {reinterpret_cast<const char*>(sum.data()), sum.size() * sizeof(T)},
               ErrorKind::internal);
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
      SCOPED_TRACE(::testing::Message() << name_of(dtype_of<T>()) << " " << elements);
      Data<T> in = values<T>(rank, elements), out = values<T>(rank, elements), other(elements);
      group.all_reduce(out);
      expect_whole_sum(group, out);
      group.all_reduce(other, in);
      expect_same_bits(other, out.values());
      expect_same_bits(in, values<T>(rank, elements));
      group.all_reduce(in, Reduction::max);
      expect_same_bits(in, expected_max<T>(size, elements));
    }
  });
}

// Many chunks at the default limits, and a last block that is shorter than the others.
TEST_P(Contract, LongSumsAreTheSame) {
  Data<float> x = values<float>(rank, 600011);
  group.all_reduce(x);
  expect_whole_sum(group, x);
}

TEST_P(Contract, ReduceScatterAndAllGatherMakeAnAllReduce) {
  for_all_types([&]<class T>() {
    for (int64_t block : kSizes) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype_of<T>()) << " " << block);
      Data<T> whole = values<T>(rank, block * size), own(block), gathered(block * size);
      group.reduce_scatter(own, whole);
      expect_same_bits(whole, values<T>(rank, block * size));
      group.all_gather(gathered, own);
      expect_whole_sum(group, gathered);
      group.all_reduce(whole);
      if (!on_gpu()) expect_same_bits(gathered, whole.values());
    }
  });
}

// The own block of the whole tensor may be output of a reduce_scatter and input of an all_gather.
TEST_P(Contract, OwnBlockMayBeInPlace) {
  for (int64_t block : kSizes) {
    Data<bf16> x = values<bf16>(rank, block * size);
    Tensor own = x.slice(rank * block, (rank + 1) * block);
    group.reduce_scatter(own, x);
    group.all_gather(x, own);
    expect_whole_sum(group, x);
  }
}

TEST_P(Contract, AllGatherKeepsRankOrder) {
  for_all_types([&]<class T>() {
    for (int64_t elements : kSizes) {
      Data<T> in = values<T>(rank, elements), out(elements * size);
      std::vector<T> expected;
      group.all_gather(out, in);
      for (int from = 0; from < size; ++from)
        for (T x : values<T>(from, elements)) expected.push_back(x);
      expect_same_bits(out, expected);
    }
  });
}

TEST_P(Contract, AllToAllTransposesBlocks) {
  for_all_types([&]<class T>() {
    for (int64_t block : kSizes) {
      Data<T> in = values<T>(rank, block * size), out(block * size);
      std::vector<T> expected;
      group.all_to_all(out, in);
      for (int from = 0; from < size; ++from)
        for (int64_t i = 0; i < block; ++i) expected.push_back(value<T>(from, rank * block + i));
      expect_same_bits(out, expected);
    }
  });
}

TEST_P(Contract, BroadcastFromEachRoot) {
  for (int root = 0; root < size; ++root) {
    for (int64_t elements : {int64_t(0), int64_t(1), int64_t(1001), int64_t(300001)}) {
      Data<float> x = values<float>(rank, elements);
      group.broadcast(x, root);
      expect_same_bits(x, values<float>(root, elements));
    }
  }
}

TEST_P(Contract, MessagesArriveInOrder) {
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  for (int64_t elements : kSizes) {
    Data<double> first = values<double>(rank, elements), second = values<double>(rank + 1000, elements + 1);
    Data<double> a(elements), b(elements + 1);
    Request send_first = group.start_send(first, next), send_second = group.start_send(second, next);
    Request get_first = group.start_recv(a, previous), get_second = group.start_recv(b, previous);
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
    Data<int32_t> out(1001), in = values<int32_t>(rank, 1001);
    Request one = send_first ? group.start_send(in, rank) : group.start_recv(out, rank);
    Request other = send_first ? group.start_recv(out, rank) : group.start_send(in, rank);
    other.wait();
    one.wait();
    expect_same_bits(out, in.values());
  }
}

// Rounded after every addition, as GPUs may, these sums stay at 1; added in fp32 they do not.
TEST_P(Contract, Bf16SumsRoundOnce) {
  for (int64_t elements : {1, 20011}) {
    Data<bf16> x = std::vector<bf16>(elements, bf16(rank == 0 ? 1.f : 0.375f * 0x1p-7f));
    group.all_reduce(x);
    float expected = size < 3 ? 1.f : 1.f + std::nearbyint(0.375f * float(size - 1)) * 0x1p-7f;
    for (bf16 sum : x.values()) ASSERT_NEAR(float(sum), expected, on_gpu() ? float(size) * 0x1p-8f : 0);
  }
}

template <class T>
void expect_maximum_with_nan(Communicator& group, int64_t elements, int bad, float nan) {
  std::vector<T> values(size_t(elements), T(float(group.rank()) - 100.f));
  if (group.rank() == bad) values[size_t(elements) / 2] = T(nan);
  values[0] = group.rank() == 0 ? T(-INFINITY) : T(float(group.rank()) - 0.5f);
  Data<T> x = values;
  group.all_reduce(x, Reduction::max);
  values = x.values();
  EXPECT_TRUE(std::isnan(float(values[size_t(elements) / 2])));
  EXPECT_EQ(float(values[1]), float(group.size() - 1) - 100.f);
  EXPECT_EQ(float(values[0]), group.size() == 1 ? -INFINITY : float(group.size()) - 1.5f);
}

TEST_P(Contract, MaximumKeepsNan) {
  for (int64_t elements : {5, 20011})
    for (int bad = 0; bad < size; ++bad)
      for (float nan : {std::nanf(""), -std::nanf("")}) {
        expect_maximum_with_nan<float>(group, elements, bad, nan);
        expect_maximum_with_nan<bf16>(group, elements, bad, nan);
        expect_maximum_with_nan<double>(group, elements, bad, nan);
      }
}

TEST_P(Contract, WaitsMayComeInAnyOrder) {
  constexpr int kVerbs = 8;
  std::vector<Data<float>> sums, blocks, gathered;
  std::vector<Request> requests;
  for (int i = 0; i < kVerbs; ++i) {
    const int64_t elements = 1 + 3001 * i;
    sums.push_back(values<float>(rank, elements));
    blocks.push_back(values<float>(rank + i, elements));
    gathered.emplace_back(elements * size);
  }
  for (int i = 0; i < kVerbs; ++i) {
    requests.push_back(group.start_all_reduce(sums[i], sums[i]));
    requests.push_back(group.start_all_gather(gathered[i], blocks[i]));
  }
  std::vector<int> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(uint32_t(rank)));
  for (int i : order) requests[i].wait();
  for (int i = 0; i < kVerbs; ++i) {
    const int64_t elements = 1 + 3001 * i;
    expect_whole_sum(group, sums[i]);
    const std::vector<float> all = gathered[i].values();
    expect_same_bits(std::vector<float>(all.end() - elements, all.end()), values<float>(size - 1 + i, elements));
  }
}

// The message that was started first comes last: everything started later must go on meanwhile.
TEST_P(Contract, WaitingMessageHoldsUpNothing) {
  Data<float> message = values<float>(rank, 5), x = values<float>(rank, 100003), answer(5);
  Request receive = group.start_recv(answer, (rank + 1) % size);
  group.all_reduce(x);
  Request send = group.start_send(message, (rank + size - 1) % size);
  receive.wait();
  send.wait();
  expect_whole_sum(group, x);
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
  Data<int64_t> in_tensor = std::vector<int64_t>(5003, rank), in_data = std::vector<int64_t>(5003, rank);
  Request first = tensor->start_all_reduce(in_tensor, in_tensor);
  Request second = data->start_all_reduce(in_data, in_data);
  if (rank % 2) std::swap(first, second);
  second.wait();
  first.wait();
  int64_t tensor_sum = 0, data_sum = 0;
  for (int other = 0; other < size; ++other) {
    if (other / 2 == rank / 2) tensor_sum += other;
    if (other % 2 == rank % 2) data_sum += other;
  }
  EXPECT_THAT(in_tensor.values(), ::testing::Each(tensor_sum));
  EXPECT_THAT(in_data.values(), ::testing::Each(data_sum));
}

TEST_P(Contract, SplitOrdersByKey) {
  auto reversed = group.split(0, -rank);
  EXPECT_EQ(reversed->rank(), size - 1 - rank);
  EXPECT_THROW(group.split(-1, 0), Error);
}

TEST_P(Contract, TestingEndsARequest) {
  Data<float> x = values<float>(rank, 30011);
  Request request = group.start_all_reduce(x, x);
  while (!request.test()) group.poll();
  EXPECT_TRUE(request.test());
  request.wait();
  expect_whole_sum(group, x);
}

TEST_P(Contract, DestroyingOrReplacingARequestWaits) {
  Data<float> x = values<float>(rank, 30011), y = values<float>(rank, 30011);
  { Request request = group.start_all_reduce(x, x); }
  expect_whole_sum(group, x);
  Request request = group.start_all_reduce(y, y);
  request = Request();
  expect_same_bits(y, x.values());
}

// What was started before is input; what is started after the wait sees the output.
TEST_P(Contract, VerbsRunBetweenWhatTheStreamDoes) {
  Data<float> from = values<float>(rank, 5003), x(5003), to(5003);
  Stream side(test_device());
  StreamScope scope(side);
  for (int repeat = 0; repeat < 3; ++repeat) {
    copy(x, from);
    Request request = group.start_all_reduce(x, x);
    request.wait();
    copy(to, x);
    copy(x, from);  // not before the sum was copied
  }
  expect_whole_sum(group, to);
  expect_same_bits(x, values<float>(rank, 5003));
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
  Data<float> x(12 * size), y(12 * size);
  Data<double> z(12 * size);
  auto strided = Tensor(x).reshaped({2, 6 * size}).slice(1, 0, 2);
  EXPECT_THAT([&] { group.all_reduce(x, z); }, ThrowsMessage<Error>(HasSubstr("output is fp32, input fp64")));
  EXPECT_THAT([&] { group.all_reduce(x, y.slice(1, 12 * size)); },
              ThrowsMessage<Error>(HasSubstr(fmt::format("1 * {} output elements", 12 * size))));
  EXPECT_THAT([&] { group.all_reduce(strided); }, ThrowsMessage<Error>(HasSubstr("not contiguous")));
  EXPECT_THAT([&] { group.all_reduce(x.slice(1, 12 * size), x.slice(0, 12 * size - 1)); },
              ThrowsMessage<Error>(HasSubstr("overlap in part")));
  EXPECT_THAT([&] { group.reduce_scatter(y.slice(0, 11), x); }, ThrowsMessage<Error>(HasSubstr("reduce_scatter")));
  EXPECT_THAT([&] { group.all_gather(x, y.slice(0, 11)); }, ThrowsMessage<Error>(HasSubstr("all_gather")));
  EXPECT_THAT([&] { group.all_to_all(x, x); }, ThrowsMessage<Error>(HasSubstr("overlap")));
  EXPECT_THAT([&] { group.broadcast(x, size); }, ThrowsMessage<Error>(HasSubstr("outside a group of")));
  EXPECT_THAT([&] { group.send(x, -1); }, ThrowsMessage<Error>(HasSubstr("rank -1")));
  EXPECT_THAT([&] { group.recv(Tensor(), 0); }, ThrowsMessage<Error>(HasSubstr("undefined")));
  if (size == 1) return;
  EXPECT_THAT([&] { group.all_to_all(x.slice(1, 12 * size), y.slice(1, 12 * size)); },
              ThrowsMessage<Error>(HasSubstr("all_to_all")));
  const int other = (rank + 1) % size;  // another rank's block
  EXPECT_THAT([&] { group.reduce_scatter(x.slice(other * 12, other * 12 + 12), x); },
              ThrowsMessage<Error>(HasSubstr("own block")));
  EXPECT_THAT([&] { group.all_gather(x, x.slice(other * 12, other * 12 + 12)); },
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
