#include "framework/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <utility>

#include "framework/base/error.h"
#include "framework/data/mapped_ranges.h"
#include "framework/io/files.h"

namespace keel::data {

static_assert(std::endian::native == std::endian::little, "token files are little-endian, and read as they lie");

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const io::Descriptor file(path_, O_RDONLY, "cannot open it");
  struct stat status {};
  void* memory = nullptr;
  int failure = ::fstat(file.get(), &status) != 0 ? errno : S_ISREG(status.st_mode) ? 0 : EINVAL;
  if (failure == 0 && status.st_size > 0) {
    memory = ::mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) failure = errno;
  }
  if (failure == EINVAL) throw input_error("{}: not a regular file", path_);
  if (failure != 0) throw io::file_error(path_, "cannot read it", failure);
  data_ = static_cast<const char*>(memory);
  size_bytes_ = int64_t(status.st_size);
  if (data_ != nullptr) range_ = remember_mapping(data_, size_bytes_, path_);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(range_);
  ::munmap(const_cast<char*>(data_), size_t(size_bytes_));
}

void MappedFile::swap(MappedFile& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(range_, other.range_);
}

}  // namespace keel::data
