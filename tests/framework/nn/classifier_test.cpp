// The loss over a vocabulary that is cut over the ranks of the test (CASES R72). Token i's input is the i-th unit
// vector, so that its logits are column i of the table and its gradient is column i of the table's.
#include "framework/nn/classifier.h"

#include <gtest/gtest.h>

#include "framework/comm/mpi.h"
#include "framework/parallel/tensor_parallel.h"
#include "tests/support/compare.h"

namespace keel::nn {
namespace {

using namespace keel::testing;

constexpr int64_t kVocabulary = 5;

class SplitVocabulary : public ::testing::TestWithParam<DType> {
 protected:
  SplitVocabulary()
      : world(comm::make_mpi_communicator(MPI_COMM_WORLD)),
        group(*world),
        padded((kVocabulary + world->size() - 1) / world->size() * world->size()) {}

  struct Result {
    ops::CrossEntropySums sums;
    Values gradient;  // [tokens, vocabulary], of the sum of losses
    double of_padding = 0;
  };

  // `logits` [tokens, vocabulary]. Padding rows of the table hold `padding`: nobody may look at them.
  Result run(const Values& logits, const std::vector<int32_t>& targets, const LossOptions& loss = {},
             double padding = 50) {
    const auto n = int64_t(targets.size());
    ParameterSet parameters;
    Parameter& table = parameters.declare({.name = "head.weight", .shape = {padded, n}, .product = true});
    table.placement = Placement::sharded(0);
    parameters.allocate({.activation = GetParam(), .tensor = {world->rank(), world->size()}});
    const int64_t first = table.shard_offset(), own = table.local[0];
    for (int64_t v = 0; v < own; ++v)
      for (int64_t i = 0; i < n; ++i)
        table.master.as<float>()[v * n + i] =
            float(first + v < kVocabulary ? logits[size_t(i * kVocabulary + first + v)] : padding);
    parameters.round_to_compute();
    Classifier classifier(table, {.vocabulary = kVocabulary});
    classifier.refresh();

    OwnedTensor x({n, n}, GetParam()), dx({n, n}, GetParam());
    Values identity(size_t(n * n));
    for (int64_t i = 0; i < n; ++i) identity[size_t(i * n + i)] = 1;
    set_values(x, identity);
    Arena saved(Device{}, 1 << 16), scratch(Device{}, 1 << 20);
    Context context{saved, scratch, GetParam(), &group};
    float factor = 1;
    Result result{{}, {}};
    classifier.forward_backward(Tensor(&result.sums, {4}, DType::f64), dx,
                                {x, ConstTensor(targets.data(), {n}, DType::i32), Tensor(&factor, {1}, DType::f32)},
                                loss, context);

    Values all(size_t(padded * n));
    for (int64_t i = 0; i < own * n; ++i) all[size_t(first * n + i)] = table.gradient.as<float>()[i];
    world->all_reduce(Tensor(all.data(), {padded * n}, DType::f64));
    result.gradient.resize(size_t(n * kVocabulary));
    for (int64_t v = 0; v < padded; ++v)
      for (int64_t i = 0; i < n; ++i) {
        const double value = all[size_t(v * n + i)];
        if (v < kVocabulary)
          result.gradient[size_t(i * kVocabulary + v)] = value;
        else
          result.of_padding += std::abs(value);
      }
    for (double value : to_doubles(dx)) EXPECT_TRUE(std::isfinite(value));
    return result;
  }

  std::unique_ptr<comm::Communicator> world;
  parallel::TensorParallel group;
  const int64_t padded;
};

TEST_P(SplitVocabulary, EqualLogitsGiveTheLogarithmOfTheVocabulary) {
  for (double smoothing : {0.0, 0.1}) {
    const Result result = run(Values(10, 0.0), {4, 1}, {.label_smoothing = smoothing});
    EXPECT_NEAR(result.sums.loss, 2 * std::log(5.0), 1e-5);
    EXPECT_EQ(result.sums.finite, 2);
    EXPECT_EQ(result.of_padding, 0);
    for (size_t i = 0; i < 10; ++i) {
      const double onehot = i == 4 || i == 6 ? 1 - smoothing : 0;
      EXPECT_NEAR(result.gradient[i], 0.2 - onehot - smoothing / 5, one_op_tolerance(GetParam())) << i;
    }
  }
}

TEST_P(SplitVocabulary, HugeLogitsStayFinite) {
  const double size = GetParam() == DType::f32 ? 1e4 : 300;  // 300 is a bf16 number
  Values logits(15, -size);
  logits[0] = logits[5] = logits[14] = size;
  const Result result = run(logits, {0, 4, 4});
  EXPECT_EQ(result.sums.finite, 3);
  EXPECT_NEAR(result.sums.loss, 2 * size, 1e-5 * size);  // the second token's target is the least likely
  const Values expected = {0, 0, 0, 0, 0, 1, 0, 0, 0, -1, 0, 0, 0, 0, 0};
  EXPECT_TRUE(near_by_norm(result.gradient, expected, 1e-6));
}

// Softmax less one-hot, computed here in double; each row's sum is 0; smoothing is over the whole vocabulary.
TEST_P(SplitVocabulary, GradientIsSoftmaxLessOneHot) {
  const Values logits = to_doubles(random_tensor({4, kVocabulary}, GetParam(), 3, 2));
  const std::vector<int32_t> targets = {2, -1, 0, 4};
  for (double smoothing : {0.0, 0.1}) {
    const Result result = run(logits, targets, {.label_smoothing = smoothing});
    double loss = 0;
    Values expected(logits.size());
    for (size_t i = 0; i < 4; ++i) {
      if (targets[i] < 0) continue;
      double sum = 0, mean = 0, row = 0;
      for (size_t v = 0; v < 5; ++v) sum += std::exp(logits[i * 5 + v]), mean += logits[i * 5 + v] / 5;
      loss += std::log(sum) - (1 - smoothing) * logits[i * 5 + size_t(targets[i])] - smoothing * mean;
      for (size_t v = 0; v < 5; ++v) {
        expected[i * 5 + v] =
            std::exp(logits[i * 5 + v]) / sum - (int(v) == targets[i] ? 1 - smoothing : 0) - smoothing / 5;
        row += result.gradient[i * 5 + v];
      }
      EXPECT_NEAR(row, 0, one_op_tolerance(GetParam()));
    }
    EXPECT_NEAR(result.sums.loss, loss, 1e-5 * loss);
    EXPECT_EQ(result.sums.counted, 3);
    EXPECT_TRUE(near_by_norm(result.gradient, expected, one_op_tolerance(GetParam())));
  }
}

// A group on paper: what the layer asks it to exchange.
struct Exchanges : TensorGroup {
  void leave_forward(Tensor) override {}
  void enter_backward(Tensor) override {}
  void sum(Tensor x) override { sums.push_back(x.elements()); }
  void maximum(Tensor x) override { maxima.push_back(x.elements()); }
  void gather(Tensor, ConstTensor) override {}
  int size() const override { return 2; }

  std::vector<int64_t> sums, maxima;
};

// A step of n tokens without memory, on a CPU or a GPU; returns the scratch memory that it would take.
int64_t rehearse(Exchanges& group, DeviceKind device, int64_t n, int64_t vocabulary, double smoothing) {
  const Device meta{DeviceKind::meta};
  constexpr int64_t kHidden = 64;
  ParameterSet parameters;
  Parameter& table = parameters.declare({.name = "head.weight", .shape = {vocabulary, kHidden}, .product = true});
  parameters.allocate({.device = meta, .activation = DType::bf16});
  Classifier classifier(table, {.vocabulary = vocabulary});
  classifier.refresh();
  const Tensor x(nullptr, {n, kHidden}, DType::bf16, meta), sums(nullptr, {4}, DType::f64, meta);
  const Tensor targets(nullptr, {n}, DType::i32, meta), factor(nullptr, {1}, DType::f32, meta);
  Arena saved, scratch;
  Context context{saved, scratch, DType::bf16, &group, device};
  classifier.forward_backward(sums, x, {x, targets, factor}, {.label_smoothing = smoothing}, context);
  return scratch.peak_bytes();
}

TEST(Classifier, RanksExchangeTwicePerChunk) {
  for (double smoothing : {0.0, 0.1}) {
    Exchanges group;
    rehearse(group, DeviceKind::cpu, 700, 1000, smoothing);
    EXPECT_EQ(group.maxima, (std::vector<int64_t>{512, 188}));
    const int64_t numbers = smoothing > 0 ? 3 : 2;
    EXPECT_EQ(group.sums, (std::vector<int64_t>{512 * numbers, 188 * numbers}));
  }
}

TEST(Classifier, ChunksAreLongerOnGpusWhileTheirLogitsTakeAGibibyteAtMost) {
  const auto chunks = [](int64_t vocabulary) {
    Exchanges group;
    const int64_t bytes = rehearse(group, DeviceKind::cuda, 10000, vocabulary, 0);
    EXPECT_LE(bytes, (int64_t(1) << 30) * 3 / 2 + (int64_t(1) << 20));  // logits, and their gradient in bf16
    return group.maxima;
  };
  EXPECT_EQ(chunks(32000), (std::vector<int64_t>{4096, 4096, 1808}));
  EXPECT_EQ(chunks(128256).front(), 2048);
  Exchanges group;
  EXPECT_LT(rehearse(group, DeviceKind::cpu, 10000, 128256, 0), int64_t(512) << 20);
}

INSTANTIATE_TEST_SUITE_P(Types, SplitVocabulary, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace keel::nn
