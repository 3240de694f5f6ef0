#include "framework/ops/qk_norm/logit_scale.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"

namespace keel::ops {
namespace {

using namespace keel::testing;

TEST(LogitScale, PerHeadSharedAndFixed) {
  for (int64_t heads : {1, 3, 40, 100}) {
    DeviceTensor per_head = random_tensor({heads}, DType::f32, 1, 0.2, 1), shared = random_tensor({1}, DType::f32, 2);
    DeviceTensor g({heads}, DType::f32);
    const Values of_heads = to_doubles(per_head);
    const double of_layer = to_doubles(shared)[0];
    logit_scale_forward(g, per_head, 0.7f);
    for (size_t h = 0; h < of_heads.size(); ++h) EXPECT_FLOAT_EQ(float(to_doubles(g)[h]), float(0.7f * of_heads[h]));
    logit_scale_forward(g, shared, 0.7f);
    for (double value : to_doubles(g)) EXPECT_FLOAT_EQ(float(value), float(0.7f * of_layer));
    logit_scale_forward(g, {}, 0.7f);
    for (double value : to_doubles(g)) EXPECT_EQ(float(value), 0.7f);
  }
}

TEST(LogitScale, GradientsAccumulate) {
  for (int64_t heads : {1, 3, 40, 100}) {
    DeviceTensor dg = random_tensor({heads}, DType::f32, 3), shared = tensor_of({1}, DType::f32, {5});
    DeviceTensor per_head = tensor_of({heads}, DType::f32, Values(size_t(heads), 2.0));
    Values expected = to_doubles(dg);
    double total = 5;
    for (double& value : expected) {
      total += 0.5 * value;
      value = 2 + 0.5 * value;
    }
    logit_scale_backward(shared, dg, 0.5f);
    EXPECT_NEAR(to_doubles(shared)[0], total, 1e-4);
    if (heads == 1) continue;
    logit_scale_backward(per_head, dg, 0.5f);
    EXPECT_TRUE(near_by_norm(per_head, expected, kFloat32));
  }
}

}  // namespace
}  // namespace keel::ops
