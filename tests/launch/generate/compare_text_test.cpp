#include "launch/generate/compare_text.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

TEST(CompareText, CountsKnownWordsAndFindsTheLongestCopy) {
  const TextComparison c =
      compare_text("A quick zebra; the lazy dog sleeps", "The quick brown fox jumps over the lazy dog.");
  EXPECT_EQ(c.words, 7);
  EXPECT_EQ(c.known_words, 4);  // quick, the, lazy, dog
  EXPECT_EQ(c.longest_copy, " the lazy dog");
}

TEST(CompareText, NothingInCommon) {
  const TextComparison c = compare_text("xyz", "");
  EXPECT_EQ(c.words, 1);
  EXPECT_EQ(c.known_words, 0);
  EXPECT_EQ(c.longest_copy, "");
}

}  // namespace
}  // namespace keel
