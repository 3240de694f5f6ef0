#include "launch/bench/gpu_report.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "framework/io/files.h"

namespace keel {
namespace {

using nlohmann::json;

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Layouts and tables that a test records (RecordProperty) are JSON in a string.
json property_of(const json& value) {
  if (!value.is_string()) return value;
  const json parsed = json::parse(value.get<std::string>(), nullptr, false);
  return parsed.is_discarded() ? value : parsed;
}

void add_case(json& result, const json& of) {
  const std::string name = of.value("classname", "") + "." + of.value("name", "");
  for (const json& failure : of.value("failures", json::array()))
    result["failures"].push_back({{"case", name}, {"message", failure.value("failure", "")}});
  if (of.value("result", "") == "SKIPPED") result["skipped"].push_back(name);
  for (const auto& [key, value] : of.items())
    if (key.starts_with("layout")) result["layouts"][key] = property_of(value);
}

// Of one test program. One that was ended by a signal or a limit has no JSON: the end of its log says where.
json test_result(const std::string& folder, const std::string& name, int code, double seconds) {
  json result = {{"exit_code", code}, {"seconds", seconds}, {"failures", json::array()}, {"skipped", json::array()}};
  const json found = json::parse(text_of(folder + "/" + name + ".json"), nullptr, false);
  if (found.is_object()) {
    result["cases"] = found.value("tests", 0);
    for (const json& suite : found.value("testsuites", json::array()))
      for (const json& one : suite.value("testsuite", json::array())) add_case(result, one);
  }
  if (code != 0 && result["failures"].empty()) {
    constexpr size_t kEnd = 4000;
    const std::string log = text_of(folder + "/" + name + ".log");
    result["end_of_log"] = log.substr(log.size() - std::min(log.size(), kEnd));
  }
  return result;
}

}  // namespace

GpuReport::GpuReport(std::string path, double limit_seconds) : path_(std::move(path)), limit_seconds_(limit_seconds) {
  for (const char* name : {"errors", "tests"}) values[name] = json::object();
  values["left_out"] = json::array();
}

void GpuReport::add_tests(const std::string& folder) {
  work_on("results of the tests", [&] { read_tests(folder); });
}

void GpuReport::read_tests(const std::string& folder) {
  std::ifstream results(folder + "/results"), left_out(folder + "/left_out");
  std::string name;
  int code = 0;
  for (double seconds = 0; results >> name >> code >> seconds;)
    values["tests"][name] = test_result(folder, name, code, seconds);
  size_t cases = 0, failed = 0, skipped = 0;
  for (const json& test : values["tests"]) {
    cases += test.value("cases", size_t(0));
    failed += test["failures"].size();
    skipped += test["skipped"].size();
  }
  values["cases"] = {{"all", cases}, {"failed", failed}, {"skipped", skipped}};
  while (left_out >> name) values["left_out"].push_back(name);
}

void GpuReport::part(const std::string& name, const std::function<void()>& work) {
  if (seconds_since(begin_) > limit_seconds_) {
    std::cout << "== " << name << ": left out, " << limit_seconds_ << " s are over" << std::endl;
    values["left_out"].push_back(name);
    return write();
  }
  work_on(name, work);
}

void GpuReport::work_on(const std::string& name, const std::function<void()>& work) {
  values["at"] = name;
  write();
  Stopwatch watch;
  try {
    work();
  } catch (const std::exception& error) {
    add_error(name, error.what());
  }
  values.erase("at");
  write();
  std::cout << fmt::format("== {}: {:.1f} s", name, watch.lap()) << std::endl;
}

void GpuReport::add_error(const std::string& name, const std::string& what) {
  values["errors"][name] = what;
  std::cerr << "!! " << name << ": " << what << std::endl;
}

void GpuReport::write() const {
  // Logs may hold anything.
  io::write_file(path_, values.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

bool GpuReport::good() const {
  return values["errors"].empty() && values["left_out"].empty();
}

}  // namespace keel
