// A whole file as read-only memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace keel::data {

struct MappedRange;

class MappedFile {
 public:
  MappedFile() = default;
  // Errors: those of io::file_error; an input error for what is no file. A file that is cut short while it is mapped
  // ends the process where it is read (mapped_ranges.h).
  explicit MappedFile(std::string path);
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MappedFile();

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }
  const char* data() const { return data_; }

  // A little-endian number at any byte offset; the caller has checked the range.
  template <class T>
  T at(int64_t offset_bytes) const {
    T value;
    std::memcpy(&value, data_ + offset_bytes, sizeof value);
    return value;
  }

 private:
  void swap(MappedFile& other) noexcept;

  std::string path_;
  const char* data_ = nullptr;
  int64_t size_bytes_ = 0;
  MappedRange* range_ = nullptr;
};

}  // namespace keel::data
