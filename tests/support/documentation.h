// Generated tables in hand-written documents: equal to what the code says, byte for byte, or rewritten on request.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "framework/config/fields.h"

namespace keel::testing {

// The table between "<!-- begin NAME -->" and "<!-- end NAME -->" of `path` must be `table`.
inline void expect_documented(const std::string& path, const std::string& name, const std::string& table) {
  std::ifstream in(path, std::ios::binary);
  ASSERT_TRUE(in) << path;
  std::stringstream text;
  text << in.rdbuf();
  std::string expected = config::with_table(text.str(), name, table);
  if (expected != text.str() && std::getenv("KEEL_UPDATE_DOCS") != nullptr) {
    std::ofstream out(path, std::ios::binary);
    out << expected;
    ASSERT_TRUE(out.flush()) << path;
    return;
  }
  EXPECT_TRUE(expected == text.str()) << path << ": table " << name
                                      << " is out of date; run this test with KEEL_UPDATE_DOCS=1 and commit the change";
}

}  // namespace keel::testing
