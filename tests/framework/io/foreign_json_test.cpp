#include "framework/io/foreign_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::io {
namespace {

using namespace keel::testing;
using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  return message_of([&] { parse_foreign_json(text, "x.json"); });
}

std::string nested(int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += i % 2 ? "[" : "{\"a\":";
  text += "0";
  for (int i = depth; i-- > 0;) text += i % 2 ? "]" : "}";
  return text;
}

TEST(ForeignJson, IsOneObjectWithoutSurprises) {
  EXPECT_EQ(parse_foreign_json(R"({"a": [1, {"b": 2}], "b": null})", "x.json")["a"][1]["b"], 2);
  EXPECT_EQ(refusal(R"({"a": {"b": 1}, "c": {"b": 1}})"), "");
  EXPECT_THAT(refusal("{"), HasSubstr("x.json is not JSON"));
  EXPECT_THAT(refusal("{} {}"), HasSubstr("x.json is not JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("x.json is not a JSON object"));
  EXPECT_THAT(refusal(R"({"a": 1, "a": 1})"), HasSubstr("has the key \"a\" twice"));
  EXPECT_THAT(refusal(R"({"c": [{"a": 1, "b": 0, "a": 2}]})"), HasSubstr("has the key \"a\" twice"));
}

TEST(ForeignJson, NestsNoDeeperThanAnybodyWrites) {
  EXPECT_EQ(refusal(nested(kDeepestJson)), "");
  EXPECT_THAT(refusal(nested(kDeepestJson + 1)), HasSubstr("nests more than 64 deep"));
  EXPECT_THAT(refusal(nested(3'000'000)), HasSubstr("nests more than 64 deep"));
}

TEST(ForeignJson, FilesHaveASize) {
  const TemporaryFolder folder;
  write_bytes(folder / "x.json", R"({"a": "0123456789"})");
  EXPECT_EQ(read_foreign_json(folder / "x.json", 100)["a"], "0123456789");
  EXPECT_THAT(message_of([&] { read_foreign_json(folder / "x.json", 10); }), HasSubstr("x.json: larger than"));
  EXPECT_THAT(message_of([&] { read_foreign_json(folder / "y.json", 10); }), HasSubstr("y.json"));
}

TEST(ForeignJson, LongValuesAreCutInMessages) {
  EXPECT_EQ(excerpt({1, "a"}), "[1,\"a\"]");
  EXPECT_EQ(excerpt(std::string(1000, 'x')), "\"" + std::string(56, 'x') + "...");
  EXPECT_EQ(excerpt("\u00e9"), "\"\\u00e9\"") << "so that no cut falls into a character";
}

}  // namespace
}  // namespace keel::io
