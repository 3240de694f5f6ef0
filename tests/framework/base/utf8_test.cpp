#include "framework/base/utf8.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

TEST(Utf8, KnowsWellFormedCharacters) {
  for (const char* good : {"a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(character_bytes(good), std::string_view(good).size()) << good;
  for (const char* bad : {"", "\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"})
    EXPECT_EQ(character_bytes(bad), 0u) << bad;
  EXPECT_EQ(count_invalid_bytes("0123456789\xFF"
                                "abc\xE2\x82"),
            3);
  EXPECT_EQ(valid_prefix_bytes("0123456789abcdef\xC3\xA9\xFF"), 18u);
  EXPECT_EQ(cut_between_characters("ab\xE2\x82\xAC"
                                   "c",
                                   4),
            2u);
  EXPECT_EQ(cut_between_characters("ab\xE2\x82\xAC"
                                   "c",
                                   5),
            5u);
  EXPECT_EQ(cut_between_characters("\xFF\xFF\xFF\xFF\xFF", 3), 3u);
  EXPECT_EQ(cut_between_characters("ab", 4), 2u);
}

}  // namespace
}  // namespace keel
