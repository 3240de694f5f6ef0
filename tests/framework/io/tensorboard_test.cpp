// Event files, read back by a decoder that shares nothing with the writer.
#include "framework/io/tensorboard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <vector>

#include "tests/support/disk.h"
#include "tests/support/folder.h"

namespace keel::io {
namespace {

using namespace keel::testing;

uint32_t crc_by_bits(const std::string& bytes) {
  uint32_t state = ~0u;
  for (unsigned char byte : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = ((state ^ (byte >> bit)) & 1) != 0;
      state = (state >> 1) ^ (one ? 0x82F63B78u : 0);
    }
  return ~state;
}

struct Reader {
  std::string bytes;
  size_t at = 0;
  bool more() const { return at < bytes.size(); }
  std::string take(size_t n) {
    if (n > bytes.size() - at) throw std::runtime_error("cut short");
    at += n;
    return bytes.substr(at - n, n);
  }
  template <class T>
  T fixed() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = uint8_t(take(1)[0]);
      value |= uint64_t(byte & 127) << shift;
      if (byte < 128) return value;
    }
  }
};

// The fields of a message by number; each value as raw bytes or as a varint.
struct Field {
  std::string bytes;
  uint64_t varint = 0;
};
std::multimap<uint64_t, Field> fields(const std::string& message) {
  std::multimap<uint64_t, Field> all;
  Reader reader{message};
  while (reader.more()) {
    const uint64_t key = reader.varint();
    Field field;
    switch (key & 7) {
      case 0:
        field.varint = reader.varint();
        break;
      case 1:
        field.bytes = reader.take(8);
        break;
      case 2:
        field.bytes = reader.take(reader.varint());
        break;
      case 5:
        field.bytes = reader.take(4);
        break;
      default:
        throw std::runtime_error("a wire type that does not exist");
    }
    all.emplace(key >> 3, field);
  }
  return all;
}

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  std::optional<uint64_t> session_status;
  std::vector<std::pair<std::string, float>> scalars;
};

Event decode(const std::string& message) {
  Event event;
  for (const auto& [number, field] : fields(message)) {
    if (number == 1) event.wall_time = Reader{field.bytes}.fixed<double>();
    if (number == 2) event.step = int64_t(field.varint);
    if (number == 3) event.version = field.bytes;
    if (number == 7) event.session_status = fields(field.bytes).find(1)->second.varint;
    if (number != 5) continue;
    for (const auto& [inner, value] : fields(field.bytes)) {
      EXPECT_EQ(inner, 1u);
      auto parts = fields(value.bytes);
      event.scalars.emplace_back(parts.find(1)->second.bytes, Reader{parts.find(2)->second.bytes}.fixed<float>());
    }
  }
  return event;
}

std::vector<Event> read_events(const std::string& path) {
  std::vector<Event> events;
  Reader reader{read_bytes(path)};
  auto check = [](const std::string& bytes, uint32_t stored) {
    const uint32_t crc = crc_by_bits(bytes);
    EXPECT_EQ(stored, uint32_t((crc >> 15 | crc << 17) + 0xa282ead8u));
  };
  while (reader.more()) {
    const std::string length = reader.take(8);
    check(length, reader.fixed<uint32_t>());
    const std::string data = reader.take(Reader{length}.fixed<uint64_t>());
    check(data, reader.fixed<uint32_t>());
    events.push_back(decode(data));
  }
  return events;
}

TEST(TensorBoard, EventsAreWhatAnotherDecoderReads) {
  TemporaryFolder scratch;
  TensorBoardWriter writer(scratch / "tensorboard");
  const std::string long_tag(300, 't');
  writer.write(1, std::vector<Scalar>{{"loss", 2.5f}, {long_tag, -0.f}});
  writer.write(3'000'000'000, std::vector<Scalar>{{"loss", std::nanf("")}});
  writer.write(4'000'000'000, {});
  auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_TRUE(events[0].scalars.empty());
  EXPECT_EQ(events[1].step, 1);
  ASSERT_EQ(events[1].scalars.size(), 2u);
  EXPECT_EQ(events[1].scalars[0], (std::pair<std::string, float>("loss", 2.5f)));
  EXPECT_EQ(events[1].scalars[1].first, long_tag);
  EXPECT_TRUE(std::signbit(events[1].scalars[1].second));
  EXPECT_NEAR(events[1].wall_time, double(std::time(nullptr)), 60);
  EXPECT_EQ(events[2].step, 3'000'000'000);
  EXPECT_TRUE(std::isnan(events[2].scalars[0].second));
  for (const Event& event : events) EXPECT_FALSE(event.session_status.has_value());
  EXPECT_NE(std::filesystem::path(writer.path()).filename().string().find("tfevents"), std::string::npos);
}

TEST(TensorBoard, AResumedRunStartsAFileThatForgetsLaterSteps) {
  TemporaryFolder scratch;
  TensorBoardWriter first(scratch.path()), second(scratch.path(), 11);
  EXPECT_NE(first.path(), second.path());
  EXPECT_LT(first.path(), second.path());  // TensorBoard reads the files of a directory in this order
  auto events = read_events(second.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].session_status, 1u);  // START
  EXPECT_EQ(events[1].step, 11);
}

TEST(TensorBoard, AFailedRecordLeavesNoPart) {
  TemporaryFolder scratch;
  TensorBoardWriter writer(scratch.path());
  const std::string tag(5000, 't');
  {
    FileSizeLimit limit(4096);
    EXPECT_THROW(writer.write(1, std::vector<Scalar>{{tag, 1.f}}), Error);
  }
  writer.write(2, std::vector<Scalar>{{"loss", 1.f}});
  auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].step, 2);
}

}  // namespace
}  // namespace keel::io
