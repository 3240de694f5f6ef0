// safetensors files: values and types there and back, several files, and everything that a stranger's file may have
// wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoints/safetensors/model_files.h"
#include "checkpoints/safetensors/writer.h"
#include "framework/io/files.h"
#include "framework/tensor/dtype.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::checkpoints::safetensors {
namespace {

using ::testing::HasSubstr;

std::string file_of(const std::string& header, size_t data_bytes, uint64_t header_bytes = 0) {
  const uint64_t bytes = header_bytes ? header_bytes : header.size();
  return std::string(reinterpret_cast<const char*>(&bytes), 8) + header + std::string(data_bytes, '\0');
}

std::string entry(const std::string& shape, const std::string& offsets, const std::string& type = "F32") {
  return R"({"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

class Safetensors : public ::testing::Test {
 protected:
  // What opening this file says.
  std::string refusal(const std::string& content) {
    io::write_file(folder / "x.safetensors", content);
    return testing::message_of([&] { ModelFiles file(folder / "x.safetensors"); });
  }
  std::string refusal_of_header(const std::string& header, size_t data_bytes) {
    return refusal(file_of(header, data_bytes));
  }
  std::vector<float> read(const std::string& path, const std::string& name) {
    const ModelFiles files(path);
    std::vector<float> values(size_t(files.find(name)->elements()));
    files.read(name, 0, values);
    return values;
  }

  testing::TemporaryFolder folder;
};

TEST_F(Safetensors, TypesRoundToNearestEven) {  // CASES R80
  const std::vector<float> values = {
      1 + 0x1p-7f, 1 + 0x1p-8f,  1 + 3 * 0x1p-8f,     -0.f,    65504,  65519, 65520, 0x1p-24f,
      0x1p-25f,    3 * 0x1p-25f, 0x1p-14f - 0x1p-24f, 2047.5f, 1e-30f, 3e38f};
  struct Expected {
    Element type;
    std::vector<float> values;
  };
  const float inf = std::numeric_limits<float>::infinity();
  const Expected cases[] = {{Element::f32, values},
                            {Element::bf16,
                             {1 + 0x1p-7f, 1, 1 + 0x1p-6f, -0.f, 65536, 65536, 65536, 0x1p-24f, 0x1p-25f, 3 * 0x1p-25f,
                              0x1p-14f, 2048, bf16(1e-30f), bf16(3e38f)}},
                            {Element::f16,
                             {1 + 0x1p-7f, 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, -0.f, 65504, 65504, inf, 0x1p-24f, 0, 0x1p-23f,
                              0x1p-14f - 0x1p-24f, 2048, 0, inf}}};
  for (const Expected& expected : cases) {
    std::string bytes;
    append_bytes(bytes, values, expected.type);
    std::vector<float> back(values.size());
    to_float(back, bytes.data(), expected.type);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(expected.values[i]))
          << name_of(expected.type) << " of " << values[i] << " is " << back[i];
  }
}

// What would become infinite is refused, and leaves no file; what is infinite stays it.
TEST_F(Safetensors, TypesTooSmallAreRefused) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto written = [&](float value, Element type) {
    const std::string path = folder / fmt::format("{}-{}", value, name_of(type));
    io::create_directories(path);
    const std::string message = testing::message_of([&] {
      write_model({{"x", {3}}}, [&](size_t) { return std::vector{1.f, value, -inf}; }, {.folder = path, .type = type});
    });
    EXPECT_EQ(message.empty(), std::filesystem::exists(path + "/model.safetensors"));
    if (message.empty()) {
      EXPECT_EQ(read(path, "x")[2], -inf);
    }
    return message;
  };
  EXPECT_EQ(written(65519, Element::f16), "");
  EXPECT_THAT(written(65520, Element::f16), HasSubstr("x holds 65520, which F16 has no number for"));
  EXPECT_THAT(written(-1e5f, Element::f16), HasSubstr("x holds -100000"));
  EXPECT_EQ(written(3e38f, Element::bf16), "");
  EXPECT_THAT(written(3.4e38f, Element::bf16), HasSubstr("which BF16 has no number for"));
  EXPECT_EQ(written(3.4e38f, Element::f32), "");
  EXPECT_EQ(written(inf, Element::f16), "");
}

TEST_F(Safetensors, EveryHalfComesBack) {
  std::string bytes;
  std::vector<float> values(65536);
  for (uint32_t bits = 0; bits < 65536; ++bits) bytes.append(reinterpret_cast<const char*>(&bits), 2);
  to_float(values, bytes.data(), Element::f16);
  std::string again;
  append_bytes(again, values, Element::f16);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if (std::isnan(values[bits])) continue;
    EXPECT_EQ(std::memcmp(bytes.data() + 2 * bits, again.data() + 2 * bits, 2), 0) << bits;
  }
  EXPECT_EQ(values[0x3555], 0.333251953125f);
}

TEST_F(Safetensors, SeveralFilesAndTheirIndex) {
  const std::vector<NamedShape> tensors = {{"a", {4, 3}}, {"b", {5}}, {"c", {100}}, {"d", {1}}};
  const auto values_of = [&](size_t i) {
    std::vector<float> values(size_t(tensors[i].shape[0] * (tensors[i].shape.size() > 1 ? 3 : 1)));
    for (size_t j = 0; j < values.size(); ++j) values[j] = float(100 * i + j);
    return values;
  };
  EXPECT_EQ(write_model(tensors, values_of, {.folder = folder.path(), .file_bytes = 100}), 4 * (12 + 5 + 100 + 1));
  EXPECT_TRUE(std::filesystem::exists(folder / "model-00003-of-00003.safetensors"));
  const ModelFiles files(folder.path());
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b", "c", "d"}));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(read(folder.path(), tensors[i].name), values_of(i));
  std::vector<float> middle(2);
  files.read("a", 5, middle);
  EXPECT_EQ(middle, (std::vector<float>{5, 6}));

  // A shard that is cut short, absent, or holds what the index says of another.
  const std::string third = folder / "model-00003-of-00003.safetensors", whole = io::read_file(third, 1 << 20);
  const auto complaint = [&] { return testing::message_of([&] { ModelFiles again(folder.path()); }); };
  io::write_file(third, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(complaint(), HasSubstr("d: lies up to byte 4 of the data, and the file has 3 of it"));
  std::filesystem::remove(third);
  EXPECT_THAT(complaint(), HasSubstr("model-00003-of-00003.safetensors: cannot open"));
  std::filesystem::copy_file(folder / "model-00002-of-00003.safetensors", third);
  EXPECT_THAT(complaint(), HasSubstr("c lies in model-00003-of-00003.safetensors, where the index says"));
  const std::string index = folder / "model.safetensors.index.json";
  io::write_file(index, R"({"weight_map": {"a": "../x"}})");
  EXPECT_THAT(complaint(), HasSubstr("no name of a file beside it"));
  io::write_file(index, R"({"weight_map": {"a": "model-00001-of-00003.safetensors"}})");
  EXPECT_THAT(complaint(), HasSubstr("does not list b"));
  io::write_file(index, R"({"weight_map": [)");
  EXPECT_THAT(complaint(), HasSubstr("not JSON"));
}

TEST_F(Safetensors, RefusesMalformedFiles) {
  EXPECT_THAT(refusal("abc"), HasSubstr("3 bytes are too few"));
  EXPECT_THAT(refusal(file_of("{}", 0, 100)), HasSubstr("cut short"));
  EXPECT_THAT(refusal(file_of("{}", 0, ~uint64_t(0))), HasSubstr("above the format's limit"));
  EXPECT_THAT(refusal_of_header("{", 0), HasSubstr("not JSON"));
  EXPECT_THAT(refusal_of_header("[]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal_of_header(R"({"x":)" + entry("[2]", "[0,8]") + R"(,"x":)" + entry("[2]", "[0,8]") + "}", 8),
              HasSubstr("has the key \"x\" twice"));
  const auto one = [&](const std::string& tensor, size_t bytes = 8) {
    return refusal_of_header(R"({"x":)" + tensor + "}", bytes);
  };
  EXPECT_EQ(one(entry("[2]", "[0,8]")), "");
  EXPECT_THAT(one("3"), HasSubstr("x must be an object"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2]})"), HasSubstr("has no 'data_offsets'"));
  EXPECT_THAT(one(entry("[2]", "[0,8]", "F31")), HasSubstr("element type \"F31\" is unknown"));
  EXPECT_THAT(one(entry("[-2]", "[0,8]")), HasSubstr("whole number"));
  EXPECT_THAT(one(entry("[2.0]", "[0,8]")), HasSubstr("whole number"));
  EXPECT_THAT(one(entry("[18446744073709551616]", "[0,8]")), HasSubstr("whole number"));
  EXPECT_THAT(one(entry("[4611686018427387904,4]", "[0,8]")), HasSubstr("overflow"));
  EXPECT_THAT(one(entry("[3]", "[0,8]")), HasSubstr("takes 12 bytes, but data_offsets give it 8"));
  EXPECT_THAT(one(entry("[2]", "[8,0]")), HasSubstr("end before they begin"));
  EXPECT_THAT(one(entry("[2]", "[0,8]"), 7), HasSubstr("cut short"));
  EXPECT_THAT(one(entry("[2]", "[0,8]"), 9), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(one(entry("[1]", "[4,8]")), HasSubstr("4 bytes before x belong to no tensor"));
  EXPECT_THAT(one(entry("[2]", "[0]")), HasSubstr("[begin, end]"));
  const auto two = [&](const std::string& x, const std::string& y) {
    return refusal_of_header(R"({"x":)" + x + R"(,"y":)" + y + "}", 8);
  };
  EXPECT_THAT(two(entry("[2]", "[0,8]"), entry("[1]", "[4,8]")), HasSubstr("the data of x and y overlap"));
  EXPECT_THAT(two(entry("[2]", "[0,8]"), entry("[2]", "[0,8]")), HasSubstr("overlap"));
  EXPECT_THAT(refusal_of_header(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__.a must be a text"));
}

TEST_F(Safetensors, OtherTypesAreSeenButNotReadAsWeights) {
  io::write_file(folder / "x.safetensors", file_of(R"({"ids":)" + entry("[2]", "[0,16]", "I64") + "}", 16));
  EXPECT_THAT(testing::message_of([&] { read(folder / "x.safetensors", "ids"); }), HasSubstr("ids is I64"));
  EXPECT_THAT(testing::message_of([&] { ModelFiles nothing(folder.path()); }), HasSubstr("holds neither"));
}

}  // namespace
}  // namespace keel::checkpoints::safetensors
