// TensorBoard's event files, read by a decoder that shares nothing with the writer.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace keel::io {

inline uint32_t crc_by_bits(const std::string& bytes) {
  uint32_t state = ~0u;
  for (unsigned char byte : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = ((state ^ (byte >> bit)) & 1) != 0;
      state = (state >> 1) ^ (one ? 0x82F63B78u : 0);
    }
  return ~state;
}

struct EventReader {
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
inline std::multimap<uint64_t, Field> fields(const std::string& message) {
  std::multimap<uint64_t, Field> all;
  EventReader reader{message};
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

inline Event decode(const std::string& message) {
  Event event;
  for (const auto& [number, field] : fields(message)) {
    if (number == 1) event.wall_time = EventReader{field.bytes}.fixed<double>();
    if (number == 2) event.step = int64_t(field.varint);
    if (number == 3) event.version = field.bytes;
    if (number == 7) event.session_status = fields(field.bytes).find(1)->second.varint;
    if (number != 5) continue;
    for (const auto& [inner, value] : fields(field.bytes)) {
      EXPECT_EQ(inner, 1u);
      auto parts = fields(value.bytes);
      event.scalars.emplace_back(parts.find(1)->second.bytes, EventReader{parts.find(2)->second.bytes}.fixed<float>());
    }
  }
  return event;
}

inline std::vector<Event> read_events(const std::string& path) {
  std::vector<Event> events;
  std::ifstream file(path, std::ios::binary);
  EventReader reader{std::string(std::istreambuf_iterator<char>(file), {})};
  auto check = [](const std::string& bytes, uint32_t stored) {
    const uint32_t crc = crc_by_bits(bytes);
    EXPECT_EQ(stored, uint32_t((crc >> 15 | crc << 17) + 0xa282ead8u));
  };
  while (reader.more()) {
    const std::string length = reader.take(8);
    check(length, reader.fixed<uint32_t>());
    const std::string data = reader.take(EventReader{length}.fixed<uint64_t>());
    check(data, reader.fixed<uint32_t>());
    events.push_back(decode(data));
  }
  return events;
}

// Those of a folder's only file.
inline std::vector<Event> read_event_folder(const std::string& folder) {
  const std::filesystem::directory_iterator files(folder);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << folder;
  return read_events(std::filesystem::directory_iterator(folder)->path());
}

}  // namespace keel::io
