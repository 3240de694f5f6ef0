#include "framework/base/error.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

TEST(Error, RequireNamesThePlaceAndTheValues) {
  try {
    require(1 == 2, "sizes differ: {} and {}", 1, 2);
    FAIL() << "require let a false condition pass";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "sizes differ: 1 and 2");
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_TRUE(error.where().starts_with("tests/framework/base/error_test.cpp:")) << error.where();
  }
}

TEST(Error, InputErrorsExitWithTwo) {
  EXPECT_EQ(input_error("lr: {}", "fast").exit_code(), 2);
}

}  // namespace
}  // namespace keel
