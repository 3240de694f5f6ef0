// Gains for a retrofitted norm: exact where rows of a head are equally long, else closer to the attention there was
// than one factor per head is.
#include "models/decoder/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "framework/base/rng.h"
#include "framework/ops/qk_norm/qk_norm_rope.h"
#include "framework/ops/qk_norm/rope_table.h"
#include "framework/tensor/buffer.h"
#include "models/decoder/block_specs.h"

namespace keel::models {
namespace {

constexpr int64_t T = 24, H = 4, G = 2, d = 8;

class Calibration : public ::testing::Test {
 protected:
  // `spread`: of the logarithm of a row's length.
  void fill(double spread, int text = 0) {
    for (const auto& [tensor, heads, name] : {std::tuple(&q_, H, "q"), std::tuple(&k_, G, "k")})
      for (int64_t row = 0; row < T * heads; ++row) {
        float* x = tensor->tensor.as<float>() + row * d;
        const auto noise = [&](int64_t i) {
          return inverse_normal(uniform(key_of(uint64_t(3 + text), name), uint64_t(row * (d + 1) + i)));
        };
        double square = 0;
        for (int64_t i = 0; i < d; ++i) square += noise(i) * noise(i);
        const double length = 4 * std::exp(spread * noise(d));
        for (int64_t i = 0; i < d; ++i) x[i] = float(length * noise(i) / std::sqrt(square) * (i % 2 ? 1.5 : 1));
      }
  }
  static CalibrationOptions all_heads(std::span<const float> scale = {}, int64_t every = 1) {
    return {.heads = H, .kv_heads = G, .scale = scale, .every = every};
  }
  CalibratedGains calibrated(int passes) {
    QkCalibration calibration(config_, 0, all_heads());
    for (int pass = 0; pass < passes; ++pass) {
      calibration.add(q_, k_, {}, {1, T}, 0);
      calibration.improve(*alone_);
    }
    return calibration.gains();
  }

  void make_lengths_equal() {
    for (float* x : {q_.tensor.as<float>(), k_.tensor.as<float>()}) {
      const int64_t rows = T * (x == q_.tensor.as<float>() ? H : G);
      for (int64_t row = 0; row < rows; ++row) {
        double square = 0;
        for (int64_t i = 0; i < d; ++i) square += x[row * d + i] * x[row * d + i];
        for (int64_t i = 0; i < d; ++i) x[row * d + i] *= float(5 / std::sqrt(square));
      }
    }
  }

  // q and k as attention is given them: normalised with these gains where there are any, then rotated.
  struct Rows {
    OwnedTensor q{{T, H, d}, DType::f32}, k{{T, G, d}, DType::f32};
  };
  Rows rotated(const CalibratedGains* gains) {
    OwnedTensor qkv({T, (H + 2 * G) * d}, DType::f32), rope({T, config_.rotated_features()}, DType::f32),
        positions({T}, DType::i32);
    ops::rope_table(rope, config_.rope.theta, rope_scaling(config_, LayerKind::global));
    for (int64_t t = 0; t < T; ++t) {
      positions.tensor.as<int32_t>()[t] = int32_t(t);
      float* row = qkv.tensor.as<float>() + t * (H + 2 * G) * d;
      std::copy_n(q_.tensor.as<float>() + t * H * d, H * d, row);
      std::copy_n(k_.tensor.as<float>() + t * G * d, G * d, row + H * d);
    }
    ConstTensor q_gain, k_gain;
    if (gains) {
      q_gain = ConstTensor(gains->q.data(), {H, d}, DType::f32);
      k_gain = ConstTensor(gains->k.data(), {G, d}, DType::f32);
    }
    Rows rows;
    ops::qk_norm_rope_forward(rows.q, rows.k, {qkv, q_gain, k_gain, rope, positions}, {},
                              {.heads = H,
                               .kv_heads = G,
                               .head_dim = d,
                               .rotated = config_.rotated_features(),
                               .kind = gains ? ops::QkNormKind::rms : ops::QkNormKind::none,
                               .eps = 0});
    return rows;
  }

  // Nats per row between the attention before and after, on its own terms.
  double divergence(const CalibratedGains& gains) {
    double sum = 0;
    for (int64_t h = 0; h < H; ++h)
      for (int64_t t = 0; t < T; ++t) {
        const float* q = q_.tensor.as<float>() + (t * H + h) * d;
        std::vector<double> before, after;
        for (int64_t j = 0; j <= t; ++j) {
          const int64_t g = h / (H / G);
          const float* k = k_.tensor.as<float>() + (j * G + g) * d;
          double dot = 0, normed = 0, qq = 0, kk = 0;
          for (int64_t i = 0; i < d; ++i) {
            dot += q[i] * k[i];
            qq += q[i] * q[i];
            kk += k[i] * k[i];
            normed += double(gains.q[size_t(h * d + i)]) * gains.k[size_t(g * d + i)] * q[i] * k[i];
          }
          before.push_back(dot / std::sqrt(double(d)));
          after.push_back(gains.scale[size_t(h)] * normed / std::sqrt(qq / d * kk / d) / std::sqrt(double(d)));
        }
        const auto log_sum = [](const std::vector<double>& s) {
          double total = 0;
          for (double value : s) total += std::exp(value);
          return std::log(total);
        };
        const double a = log_sum(before), b = log_sum(after);
        for (size_t j = 0; j < before.size(); ++j) sum += std::exp(before[j] - a) * (before[j] - a - after[j] + b);
      }
    return sum / double(T * H);
  }

  static double product(const Rows& rows, int64_t h, int64_t t, int64_t j) {
    const float *q = rows.q.tensor.as<float>() + (t * H + h) * d,
                *k = rows.k.tensor.as<float>() + (j * G + h / (H / G)) * d;
    return std::inner_product(q, q + d, k, 0.0);
  }

  static DecoderConfig with_rope(const std::string& rope) {
    return read_decoder_config(config::parse(
        "{hidden: 32, layers: 1, ffn: 8, vocab: 9, attention: {heads: 4, kv_heads: 2, qk_norm: {kind: none}}, rope: " +
            rope + "}",
        "test"));
  }

  DecoderConfig config_ = with_rope("{}");
  std::unique_ptr<comm::Communicator> alone_ = comm::make_self_communicator();
  OwnedTensor q_{{T, H, d}, DType::f32}, k_{{T, G, d}, DType::f32};
};

TEST_F(Calibration, EqualLengthsLoseNothing) {
  fill(0);
  make_lengths_equal();
  const CalibratedGains gains = calibrated(2);
  EXPECT_LT(gains.divergence, 1e-9);
  EXPECT_LT(divergence(gains), 1e-9);
}

// Rows of equal length lose nothing, whatever turns them and however their heads were scaled: every logit is what it
// was.
TEST_F(Calibration, KnowsAmplitudesAndLearnedScales) {
  fill(0);
  make_lengths_equal();
  const std::vector<float> per_head = {0.5f, 2, 1.25f, -1}, one = {1.5f}, none;
  for (const char* rope : {"{scaling: {kind: yarn, factor: 16, original_positions: 8}}",
                           "{fraction: 0.5, scaling: {kind: yarn, factor: 16, original_positions: 8}}",
                           "{scaling: {kind: yarn, factor: 4, attention_factor: 0.8}}", "{}"})
    for (const std::vector<float>* w : {&none, &one, &per_head}) {
      config_.rope = with_rope(rope).rope;
      const Rows before = rotated(nullptr);
      const double g0 = config_.initial_scale(0);
      QkCalibration calibration(config_, 0, all_heads(*w));
      for (int pass = 0; pass < 2; ++pass) {
        calibration.add(before.q, before.k, {}, {1, T}, 0);
        calibration.improve(*alone_);
      }
      const CalibratedGains gains = calibration.gains();
      const Rows after = rotated(&gains);
      for (int64_t h = 0; h < H; ++h)
        for (int64_t t = 0; t < T; ++t)
          for (int64_t j = 0; j <= t; ++j) {
            const double scale = w->empty() ? 1 : (*w)[w->size() == 1 ? 0 : size_t(h)];
            const double s = g0 * scale * product(before, h, t, j);
            EXPECT_NEAR(g0 * gains.scale[size_t(h)] * product(after, h, t, j), s, 1e-4) << rope << " head " << h;
          }
    }
}

TEST_F(Calibration, ComesCloserThanOneFactor) {
  fill(0.4);
  const CalibratedGains one = calibrated(2), best = calibrated(9);  // two passes: nothing but the sizes of q and k
  EXPECT_NEAR(divergence(one), one.divergence, 1e-5 * one.divergence);
  EXPECT_NEAR(divergence(best), best.divergence, 1e-5 * best.divergence);
  EXPECT_GT(one.divergence, 0.01);
  EXPECT_LT(best.divergence, 0.9 * one.divergence);
  // A minimum: no gain of a pair does better when it changes.
  for (int64_t pair = 0; pair < d / 2; ++pair)
    for (float factor : {0.8f, 1.2f}) {
      CalibratedGains moved = best;
      for (int64_t i : {pair, pair + d / 2}) moved.q[size_t(i)] *= factor;
      EXPECT_GT(divergence(moved), best.divergence) << pair << " by " << factor;
    }
  for (int64_t i = 0; i < d / 2; ++i) EXPECT_EQ(best.q[size_t(i)], best.q[size_t(i + d / 2)]) << "within a pair";
}

// Of 64 texts, each fourth row: gains for all of them all but as close.
TEST_F(Calibration, LooksAtSomeRows) {
  constexpr int kTexts = 64;
  std::vector<std::pair<std::vector<float>, std::vector<float>>> texts;
  for (int text = 0; text < kTexts; ++text) {
    fill(0.4, text);
    const float *q = q_.tensor.as<float>(), *k = k_.tensor.as<float>();
    texts.emplace_back(std::vector<float>(q, q + T * H * d), std::vector<float>(k, k + T * G * d));
  }
  const auto each = [&](auto&& use) {
    for (const auto& [q, k] : texts) {
      std::copy(q.begin(), q.end(), q_.tensor.as<float>());
      std::copy(k.begin(), k.end(), k_.tensor.as<float>());
      use();
    }
  };
  const auto of_all = [&](int64_t every, int64_t rows) {
    QkCalibration calibration(config_, 0, all_heads({}, every));
    for (int pass = 0; pass < 9; ++pass) {
      int64_t row = 0;
      each([&] { calibration.add(q_, k_, {}, {1, T}, std::exchange(row, row + T)); });
      calibration.improve(*alone_);
    }
    EXPECT_EQ(calibration.rows_of_a_pass(), rows);
    const CalibratedGains gains = calibration.gains();
    double sum = 0;
    each([&] { sum += divergence(gains) / kTexts; });
    if (every == 1) {
      EXPECT_NEAR(gains.divergence, sum, 1e-5 * sum);
    }
    return sum;
  };
  const double all = of_all(1, kTexts * T), quarter = of_all(4, kTexts * T / 4);
  EXPECT_GT(all, 0.01);
  EXPECT_NEAR(quarter, all, 0.1 * all);
}

// A head whose keys or queries are all zero attends evenly with any gains; those it gets are numbers.
TEST_F(Calibration, DeadHeads) {
  fill(0.4);
  for (int64_t t = 0; t < T; ++t) {
    std::fill_n(k_.tensor.as<float>() + t * G * d, d, 0.f);            // of the first two heads
    std::fill_n(q_.tensor.as<float>() + (t * H + H - 1) * d, d, 0.f);  // the last
  }
  const CalibratedGains gains = calibrated(9);
  for (const std::vector<float>* values : {&gains.q, &gains.k, &gains.scale})
    for (float value : *values) ASSERT_TRUE(std::isfinite(value));
  for (int64_t i = 0; i < d; ++i) {
    EXPECT_EQ(gains.k[size_t(i)], 1);
    EXPECT_EQ(gains.q[size_t(i)], 1);
    EXPECT_EQ(gains.q[size_t((H - 1) * d + i)], 1);
  }
  EXPECT_EQ(gains.scale[0], 1);
  EXPECT_TRUE(std::isfinite(gains.divergence));
}

// Of a model that has diverged.
TEST_F(Calibration, RowsThatAreNotFiniteGiveNoGains) {
  fill(0.4);
  q_.tensor.as<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(calibrated(3), Error);
}

}  // namespace
}  // namespace keel::models
