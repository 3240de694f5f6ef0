#include "framework/data/ngram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "framework/data/corpus.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::data {
namespace {

using namespace keel::testing;
using ::testing::HasSubstr;

constexpr int64_t plenty_bytes = 1 << 30;

// The formula, counting by searching the text: context h of order-1 bytes, then w.
double brute_force(const std::string& text, const std::string& history, char w, int order) {
  if (order == 0) return 1.0 / 256;
  const double lower = brute_force(text, history, w, order - 1);
  if (int64_t(history.size()) < order - 1) return lower;
  const std::string h = history.substr(history.size() - size_t(order - 1));
  double total = 0, times = 0;
  std::set<char> followers;
  for (size_t i = h.size(); i < text.size(); ++i) {
    if (text.compare(i - h.size(), h.size(), h) != 0) continue;
    ++total;
    times += text[i] == w;
    followers.insert(text[i]);
  }
  return total == 0 ? lower : (times + double(followers.size()) * lower) / (total + double(followers.size()));
}

std::string random_text(int length, int letters, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  for (int i = 0; i < length; ++i) text += char(random() % 3 != 0 ? random() % uint32_t(letters) : random());
  return text;
}

NgramModel counted(const std::string& text, int order) {
  NgramModel model(order, plenty_bytes);
  model.add(text);
  model.finish();
  return model;
}

TEST(Ngram, WorkedByHand) {
  // "abab" then what? p_1(a) = (2 + 2/256) / (4 + 2); after b came a once: p_2 = (1 + 1 * p_1) / (1 + 1).
  std::vector<double> p;
  counted("abab", 2).probabilities("b", 'a', p);
  EXPECT_DOUBLE_EQ(p[0], (2 + 2.0 / 256) / 6);
  EXPECT_DOUBLE_EQ(p[1], (1 + p[0]) / 2);
}

TEST(Ngram, EqualsBruteForceAtEveryOrder) {
  for (int letters : {2, 4, 200}) {
    const std::string text = random_text(400, letters, 1), held_out = random_text(60, letters, 2);
    for (int order : {1, 2, 3, 5, 8}) {
      const NgramModel model = counted(text, order);
      std::vector<double> p;
      for (size_t i = 0; i < held_out.size(); ++i) {
        const std::string history = held_out.substr(0, i);
        model.probabilities(history, uint8_t(held_out[i]), p);
        for (int n = 1; n <= order; ++n)
          ASSERT_NEAR(p[size_t(n) - 1], brute_force(text, history, held_out[i], n), 1e-14) << n << " of " << order;
      }
    }
  }
}

TEST(Ngram, ProbabilitiesSumToOne) {
  const std::string text = random_text(3000, 5, 3);
  const NgramModel model = counted(text, 6);
  for (const std::string& history : {std::string(), text.substr(0, 1), text.substr(100, 9), std::string(7, '\xee')}) {
    std::vector<double> sums(6, 0), p;
    for (int w = 0; w < 256; ++w) {
      model.probabilities(history, uint8_t(w), p);
      for (size_t n = 0; n < 6; ++n) sums[n] += p[n];
    }
    for (double sum : sums) EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(Ngram, CutsAndThreadsChangeNothing) {
  const std::string text = random_text(300, 3, 4), held_out = random_text(300, 3, 5);
  const int threads = omp_get_max_threads();
  const NgramModel whole = counted(text, 4);
  NgramScore expected(whole);
  expected.add(held_out);
  for (int count : {1, 2, 3}) {
    omp_set_num_threads(count);
    for (size_t step : {1, 2, 7, 500}) {
      NgramModel model(4, plenty_bytes);
      for (size_t i = 0; i < text.size(); i += step) model.add(std::string_view(text).substr(i, step));
      model.finish();
      NgramScore score(model);
      for (size_t i = 0; i < held_out.size(); i += step) score.add(std::string_view(held_out).substr(i, step));
      for (int n = 1; n <= 4; ++n) EXPECT_NEAR(score.nats_per_byte(n), expected.nats_per_byte(n), 1e-12);
    }
  }
  omp_set_num_threads(threads);
}

TEST(Ngram, ScoresMeanLogProbability) {
  const std::string text = random_text(500, 4, 6), held_out = random_text(40, 4, 7);
  const NgramModel model = counted(text, 3);
  NgramScore score(model);
  score.add(held_out);
  for (int order : {1, 3}) {
    double nats = 0;
    for (size_t i = 0; i < held_out.size(); ++i)
      nats -= std::log(brute_force(text, held_out.substr(0, i), held_out[i], order));
    EXPECT_NEAR(score.nats_per_byte(order), nats / 40, 1e-12);
  }
}

TEST(Ngram, TextsShorterThanTheOrderAreCounted) {
  for (const char* text : {"a", "ab", "abc"}) {
    std::vector<double> p;
    counted(text, 5).probabilities("a", 'b', p);
    for (int n = 1; n <= 5; ++n) EXPECT_DOUBLE_EQ(p[size_t(n) - 1], brute_force(text, "a", 'b', n)) << text << n;
  }
}

TEST(Ngram, StaysWithinItsMemory) {
  NgramModel model(5, 1 << 20);
  EXPECT_THAT(input_error_of([&] { model.add(random_text(200000, 256, 8)); }), HasSubstr("takes more than 1.0 MiB"));
  // Pieces of text with few repeats have almost as many 4-grams as 5-grams: the first table fits, two do not.
  NgramModel lower(5, 3 << 19);
  lower.add(random_text(20000, 256, 8));
  EXPECT_THAT(input_error_of([&] { lower.finish(); }), HasSubstr("takes more than 1.5 MiB"));
  EXPECT_THROW(NgramModel(0, plenty_bytes), Error);
  EXPECT_THROW(NgramModel(9, plenty_bytes), Error);
}

TEST(EachText, ReadsTextAndWhatTokenizeMadeOfIt) {
  TemporaryFolder folder;
  std::string text;
  std::mt19937 random(10);
  for (int i = 0; i < 5000; ++i) {
    for (uint32_t word = random() % 500; word > 0; word /= 3) text += char('a' + word % 26);
    text += i % 7 == 0 ? '\n' : ' ';
  }
  write_bytes(folder / "x.txt", text);
  auto read = [&](const std::string& path) {
    std::string out;
    each_text(path, [&](std::string_view part) { out += part; });
    return out;
  };
  EXPECT_EQ(read(folder / "x.txt"), text);
  auto ignore = [](const CorpusProgress&) {};
  make_corpus({{folder / "x.txt"}, folder / "bytes", DocumentRule::line}, ignore);
  EXPECT_EQ(read(folder / "bytes"), text);
  std::filesystem::remove(folder / "bytes.json");
  EXPECT_EQ(read(folder / "bytes.bin"), text);
  make_corpus({{folder / "x.txt"}, folder / "pieces", DocumentRule::line, 0, 330}, ignore);
  EXPECT_EQ(read(folder / "pieces"), text);
  std::filesystem::remove(folder / "pieces.json");
  EXPECT_THAT(input_error_of([&] { read(folder / "pieces"); }), HasSubstr("outside the vocabulary of 257"));
  EXPECT_THAT(input_error_of([&] { read(folder / "none"); }), HasSubstr("no token file"));
}

}  // namespace
}  // namespace keel::data
