// TensorBoard event files with scalars. A file is a sequence of TFRecords:
//   record = length (uint64) masked_crc(length) (uint32) data masked_crc(data) (uint32), little-endian,
//   masked_crc = rotate_right(crc32c, 15) + 0xa282ead8;  data = an Event of tensorflow/core/util/event.proto.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "framework/io/files.h"

namespace keel::io {

struct Scalar {
  std::string_view tag;
  float value;
};

class TensorBoardWriter {
 public:
  // A new file in `directory`, which is created. A run that resumes passes the first step it will write: TensorBoard
  // then forgets what earlier files say from that step on. 0: a run from its start.
  explicit TensorBoardWriter(const std::string& directory, int64_t first_step = 0);
  void write(int64_t step, std::span<const Scalar> scalars);
  const std::string& path() const { return file_.path(); }

 private:
  void write_record(std::string_view event);
  AppendFile file_;
};

}  // namespace keel::io
