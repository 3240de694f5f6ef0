// Helpers shared by the tests of framework/config.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "framework/config/run_config.h"

namespace keel::config {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The message of the input error that `action` throws; "" (and a failure) where it throws none.
template <class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input) << error.what() << " from " << error.where();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "more than one line: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// What reading `text` as file c.yaml says.
inline std::string parse_error(const std::string& text) {
  return message_of([&] { parse(text, "c.yaml"); });
}

// A whole config that is right, as text.
inline const std::string minimal =
    "model: {kind: decoder}\n"
    "data: {train: tokens}\n"
    "train: {steps: 100}\n";

inline RunConfig run_config_of(const std::string& text) {
  return read_run_config(parse(text, "c.yaml"), "c");
}

// The config `minimal` with one override, and the error that it makes.
inline RunConfig with_override(const std::string& override) {
  std::vector<std::string> overrides = {override};
  return read_run_config(with_overrides(parse(minimal, "c.yaml"), overrides), "c");
}
inline std::string override_error(const std::string& override) {
  return message_of([&] { with_override(override); });
}

}  // namespace keel::config
