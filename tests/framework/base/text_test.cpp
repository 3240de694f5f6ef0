#include "framework/base/text.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

TEST(Nearest, FindsTyposAndRefusesStrangers) {
  std::vector<std::string> names = {"learning_rate", "optimizer", "schedule"};
  EXPECT_EQ(nearest("learning-rate", names), "learning_rate");
  EXPECT_EQ(nearest("learning_rat", names), "learning_rate");
  EXPECT_EQ(nearest("optimiser", names), "optimizer");
  EXPECT_EQ(nearest("zzz", names), "");
  std::vector<std::string> words = {"auto", "tau"};
  EXPECT_EQ(nearest("atuo", words), "auto") << "two letters swapped are one typo";
  EXPECT_EQ(nearest("tua", words), "tau");
}

TEST(ParseReal, WholeTextOrNothing) {
  double x = 0;
  for (const char* text : {"1e-4", "1.0e-4", "1E-04", "0.0001", ".0001", "+1e-4"}) {
    ASSERT_TRUE(parse_real(text, x)) << text;
    EXPECT_EQ(x, 1e-4) << text;
  }
  for (const char* text :
       {"", "1e-4x", "nan", "inf", "-inf", "1,5", "0x10", " 1", "1e999", "+-1e-4", "++1", "+", "-+1"})
    EXPECT_FALSE(parse_real(text, x)) << text;
}

TEST(ParseInteger, DecimalOnly) {
  int64_t n = 0;
  ASSERT_TRUE(parse_integer("3000000000", n));
  EXPECT_EQ(n, 3000000000);
  ASSERT_TRUE(parse_integer("+5", n));
  EXPECT_EQ(n, 5);
  ASSERT_TRUE(parse_integer("-5", n));
  EXPECT_EQ(n, -5);
  for (const char* text : {"", "010", "1e3", "1.5", "10k", "0x10", "99999999999999999999", "--1", "+-5", "+-05", "-05",
                           "++5", "-+5", "+", "-"})
    EXPECT_FALSE(parse_integer(text, n)) << text;
}

TEST(Human, ReadsWell) {
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_count(1234567), "1.23M");
  EXPECT_EQ(human_seconds(3725), "1h02m");
}

}  // namespace
}  // namespace keel
