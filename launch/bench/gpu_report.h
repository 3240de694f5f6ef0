// What gpu_check finds, on disk at any moment: neither a fault, nor a hang, nor a limit takes along what was known
// before.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "framework/base/clock.h"

namespace keel {

class GpuReport {
 public:
  // Parts that would begin later than after so many seconds are left out.
  GpuReport(std::string path, double limit_seconds);

  // The results of tests that gpu-check.sh ran: `folder` holds `results` (lines "name exit-code seconds"), `left_out`
  // (names) and, of each test, NAME.log and GoogleTest's NAME.json. A part that is never too late.
  void add_tests(const std::string& folder);
  // Does the work, unless it is too late; what it throws is an error of the report. While it works, "at" names it.
  void part(const std::string& name, const std::function<void()>& work);
  void add_error(const std::string& name, const std::string& what);
  void write() const;
  // Nothing failed and nothing was left out.
  bool good() const;

  nlohmann::json values = nlohmann::json::object();

 private:
  void work_on(const std::string& name, const std::function<void()>& work);
  void read_tests(const std::string& folder);

  std::string path_;
  double limit_seconds_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace keel
