#include "framework/base/trace.h"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <thread>

namespace keel {
namespace {

using testing::ElementsAre;

std::vector<nlohmann::json> spans_of(const std::string& text) {
  std::vector<nlohmann::json> spans;
  const auto trace = nlohmann::json::parse(text);
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") spans.push_back(event);
  return spans;
}

TEST(Trace, KeepsWhatEndsWhileItRecords) {
  { const Span before("before"); }
  trace::start();
  {
    const Span outer("outer", 3);
    const Span inner("inner");
  }
  const std::string text = trace::stop(5);
  { const Span after("after"); }
  const auto spans = spans_of(text);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "inner");
  EXPECT_FALSE(spans[0].contains("args"));
  EXPECT_EQ(spans[1].at("name"), "outer");
  EXPECT_EQ(spans[1].at("args").at("index"), 3);
  EXPECT_EQ(spans[1].at("pid"), 5);
  auto end = [](const nlohmann::json& span) { return span.at("ts").get<double>() + span.at("dur").get<double>(); };
  EXPECT_LE(spans[1].at("ts"), spans[0].at("ts"));
  EXPECT_GE(end(spans[1]) + 0.01, end(spans[0]));
  EXPECT_TRUE(spans_of(trace::stop(5)).empty());
}

TEST(Trace, AThreadHasItsNameAndThreadsOfOneNameShareARow) {
  auto work = [] {
    trace::name_thread("worker");
    const Span span("work");
  };
  trace::name_thread("first");
  trace::start();
  { const Span span("own"); }
  std::thread(work).join();
  std::thread(work).join();
  const auto text = nlohmann::json::parse(trace::stop(0));
  std::map<int, std::string> names;
  std::vector<std::string> where;
  for (const auto& event : text.at("traceEvents")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") == "X") where.push_back(names.at(event.at("tid")));
  }
  EXPECT_THAT(where, ElementsAre("first", "worker", "worker"));
}

TEST(Trace, WhatIsAboveItsCapacityIsCounted) {
  trace::start(2);
  for (int i = 0; i < 5; ++i) const Span span("many");
  const auto text = nlohmann::json::parse(trace::stop(0));
  EXPECT_EQ(text.at("otherData").at("spans_left_out"), 3);
  EXPECT_EQ(spans_of(text.dump()).size(), 2u);
}

}  // namespace
}  // namespace keel
