#include "framework/io/tensorboard.h"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>

#include "framework/base/process.h"
#include "framework/io/crc32c.h"

namespace keel::io {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The name that TensorBoard looks for; the count tells files of one second and process apart.
std::string new_file(const std::string& directory) {
  static std::atomic<uint64_t> count = 0;
  create_directories(directory);
  return fmt::format("{}/events.out.tfevents.{:010d}.{}.{}.{}", directory, int64_t(wall_seconds()), host_name(),
                     getpid(), count++);
}

template <class Integer>
void put_little_endian(std::string& out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i) out += char(value >> (8 * i) & 255);
}

// Protocol buffers: a field is (number << 3 | wire type) as a varint, then the value.
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 128; value >>= 7) out += char(value | 128);
  out += char(value);
}

void put_varint_field(std::string& out, uint32_t number, uint64_t value) {
  put_varint(out, number << 3 | 0);
  put_varint(out, value);
}

void put_double_field(std::string& out, uint32_t number, double value) {
  put_varint(out, number << 3 | 1);
  put_little_endian(out, std::bit_cast<uint64_t>(value));
}

void put_float_field(std::string& out, uint32_t number, float value) {
  put_varint(out, number << 3 | 5);
  put_little_endian(out, std::bit_cast<uint32_t>(value));
}

void put_bytes_field(std::string& out, uint32_t number, std::string_view bytes) {
  put_varint(out, number << 3 | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event_at(int64_t step) {  // Event: wall_time = 1, step = 2
  std::string event;
  put_double_field(event, 1, wall_seconds());
  put_varint_field(event, 2, uint64_t(step));
  return event;
}

uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xa282ead8u;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::string& directory, int64_t first_step) : file_(new_file(directory)) {
  std::string version = event_at(0);
  put_bytes_field(version, 3, "brain.Event:2");  // Event.file_version: the first record, always
  write_record(version);
  if (first_step <= 0) return;
  std::string restart = event_at(first_step), session_log;
  put_varint_field(session_log, 1, 1);       // SessionLog.status = START
  put_bytes_field(restart, 7, session_log);  // Event.session_log
  write_record(restart);
}

void TensorBoardWriter::write(int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes_field(value, 1, scalar.tag);    // Summary.Value.tag
    put_float_field(value, 2, scalar.value);  // Summary.Value.simple_value
    put_bytes_field(summary, 1, value);       // Summary.value
  }
  std::string event = event_at(step);
  put_bytes_field(event, 5, summary);  // Event.summary
  write_record(event);
}

void TensorBoardWriter::write_record(std::string_view event) {
  std::string record;
  put_little_endian(record, uint64_t(event.size()));
  put_little_endian(record, masked_crc(record));
  record += event;
  put_little_endian(record, masked_crc(event));
  file_.append(record);
}

}  // namespace keel::io
