#include "framework/ops/embedding.h"

#include <omp.h>

#include "tests/support/reference/embedding.h"

namespace keel::ops {
namespace {

using namespace keel::testing;
using reference::TableSizes;

// Ids in [low, high), some of which come often.
std::vector<int32_t> random_ids(int64_t n, int64_t low, int64_t high, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) {
    bool frequent = uniform(seed, uint64_t(2 * i)) < 0.4;
    ids.push_back(int32_t(frequent ? low : random_integer(seed, uint64_t(2 * i + 1), low, high)));
  }
  return ids;
}

DeviceTensor tensor_of_ids(const std::vector<int32_t>& ids) {
  return device_tensor(ids);
}

struct Types {
  DType values, table;
};

TEST(EmbeddingReference, BackwardIsTheSlopeOfForward) {
  std::vector<int32_t> ids{4, 1, 4, 9, 2};
  TableSizes sizes{5, 3, 1};
  Values table = random_values(15, 1), dy = random_values(15, 2);
  auto loss = [&](const Values& table) { return dot(reference::embedding_forward(table, ids, sizes, 0.7), dy); };
  EXPECT_TRUE(near_by_norm(reference::embedding_backward(dy, ids, sizes, 0.7), finite_differences(table, loss), 1e-8));
}

TEST(Embedding, EqualsReference) {
  for (uint64_t round = 0; round < 24; ++round) {
    int64_t rows = random_integer(3, 3 * round, 1, 60), columns = random_integer(3, 3 * round + 1, 1, 200);
    if (round % 2 == 0) columns = (columns + 7) / 8 * 8;  // rows that wide loads fit
    TableSizes sizes{rows, columns, random_integer(3, 3 * round + 2, 0, 9)};
    std::vector<int32_t> ids = random_ids(random_integer(5, round, 0, 400), 0, rows + sizes.first_id + 5, round);
    auto n = int64_t(ids.size());
    for (auto [values, table_type] : {Types{DType::f32, DType::f32}, Types{DType::bf16, DType::bf16},
                                      Types{DType::f32, DType::bf16}, Types{DType::bf16, DType::f32}}) {
      SCOPED_TRACE(
          fmt::format("n {} rows {} columns {} {} from {}", n, rows, columns, name_of(values), name_of(table_type)));
      DeviceTensor table = random_tensor({rows, columns}, table_type, round),
                   y = random_tensor({n, columns}, values, 1);
      embedding_forward(y, table, tensor_of_ids(ids), sizes.first_id, 1.7f);
      Values expected = reference::embedding_forward(to_doubles(table), ids, sizes, 1.7f);
      EXPECT_TRUE(near_by_norm(y, expected, one_op_tolerance(values)));

      DeviceTensor dy = random_tensor({n, columns}, values, 2), d_table = random_tensor({rows, columns}, DType::f32, 3);
      Values before = to_doubles(d_table);
      embedding_backward(d_table, dy, tensor_of_ids(ids), sizes.first_id, 1.7f);
      expected = reference::embedding_backward(to_doubles(dy), ids, sizes, 1.7f);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
      EXPECT_TRUE(near_by_norm(d_table, expected, kFloat32));
    }
  }
}

TEST(Embedding, ShardsAddUpToTheWholeTable) {
  std::vector<int32_t> ids = random_ids(100, 0, 30, 1);
  DeviceTensor table = random_tensor({30, 24}, DType::f32, 1), whole({100, 24}, DType::f32);
  DeviceTensor low({100, 24}, DType::f32), high({100, 24}, DType::f32);
  embedding_forward(whole, table, tensor_of_ids(ids), 0, 1);
  embedding_forward(low, table.tensor.slice(0, 0, 11), tensor_of_ids(ids), 0, 1);
  embedding_forward(high, table.tensor.slice(0, 11, 30), tensor_of_ids(ids), 11, 1);
  Values sum = to_doubles(low), rest = to_doubles(high);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += rest[i];
  EXPECT_EQ(sum, to_doubles(whole));
}

TEST(Embedding, IdsFarOutsideGiveZerosAndTouchNothing) {
  std::vector<int32_t> ids{-1, INT32_MIN, INT32_MAX, 7, 8};
  DeviceTensor table = random_tensor({3, 8}, DType::f32, 1), y = random_tensor({5, 8}, DType::f32, 2);
  embedding_forward(y, table, tensor_of_ids(ids), 8, 1);
  Values expected(40, 0.0), first = to_doubles(table);
  std::copy_n(first.begin(), 8, expected.end() - 8);
  EXPECT_EQ(to_doubles(y), expected);
  DeviceTensor d_table({3, 8}, DType::f32), dy = random_tensor({5, 8}, DType::f32, 3);
  embedding_backward(d_table, dy, tensor_of_ids(ids), 8, 1);
  Values added = to_doubles(dy);
  Values d_expected(24, 0.0);
  std::copy_n(added.end() - 8, 8, d_expected.begin());
  EXPECT_EQ(to_doubles(d_table), d_expected);
}

// fp32 sums depend on their order: equal bits mean the order of n.
TEST(Embedding, EqualIdsAddInOrderAtAnyThreadCount) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    std::vector<int32_t> ids = random_ids(2500, 0, 4, 1);
    DeviceTensor dy = random_tensor({2500, 100}, dtype, 2), in_order({4, 100}, DType::f32);
    for (size_t i = 0; i < ids.size(); ++i)
      embedding_backward(in_order, dy.tensor.slice(0, int64_t(i), int64_t(i) + 1), tensor_of_ids({ids[i]}), 0, 1.3f);
    int threads = omp_get_max_threads();
    for (int count : {1, 2, 3, 5}) {
      DeviceTensor d_table({4, 100}, DType::f32);
      omp_set_num_threads(count);
      embedding_backward(d_table, dy, tensor_of_ids(ids), 0, 1.3f);
      EXPECT_TRUE(same_bits(d_table, in_order)) << count << " threads";
    }
    omp_set_num_threads(threads);
  }
}

TEST(Embedding, ErrorsNameBothValues) {
  std::vector<int32_t> ids{1, 2};
  DeviceTensor table({4, 8}, DType::f32), y({3, 8}, DType::f32), narrow({2, 7}, DType::f32);
  auto message = [&](Tensor out, ConstTensor id) -> std::string {
    try {
      embedding_forward(out, table, id, 0, 1);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_THAT(message(y, tensor_of_ids(ids)), ::testing::HasSubstr("2 ids for 3 rows"));
  EXPECT_THAT(message(narrow, tensor_of_ids(ids)), ::testing::HasSubstr("rows of 7 from a table of 8"));
  EXPECT_THAT(message(y, DeviceTensor({3}, DType::i64)), ::testing::HasSubstr("int64 ids"));
}

}  // namespace
}  // namespace keel::ops
