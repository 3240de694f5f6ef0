#include "framework/io/files.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "framework/base/log.h"
#include "framework/base/process.h"
#include "framework/base/text.h"
#include "framework/io/crc32c.h"

namespace keel::io {
namespace {

// Without a directory of its own a path lies in ".".
std::string directory_of(const std::string& path) {
  std::string directory = std::filesystem::path(path).parent_path().string();
  return directory.empty() ? "." : directory;
}

Descriptor lock_file(const std::string& directory) {
  return Descriptor(directory + "/lock", O_RDWR | O_CREAT, "cannot open the lock of this run");
}

enum class Lock { taken, busy, unsupported };

// errno says why it is unsupported.
Lock lock(Descriptor& file) {
  int failed = 0;
  while ((failed = flock(file.get(), LOCK_EX | LOCK_NB)) != 0 && errno == EINTR) continue;
  if (failed && errno == EWOULDBLOCK) return Lock::busy;
  if (failed && (errno == ENOLCK || errno == ENOSYS || errno == ENOTSUP || errno == EINVAL)) return Lock::unsupported;
  if (failed) throw file_error(file.path(), "cannot lock", errno);
  file.truncate(0);
  file.write_all(fmt::format("host {}, process {}, since {:%Y-%m-%d %H:%M:%S} UTC", host_name(), getpid(),
                             fmt::gmtime(std::time(nullptr))));
  return Lock::taken;
}

// Where errno says why.
void warn_of_no_lock(const Descriptor& file) {
  log::warning("{}: {}: nothing protects this directory from a second run", file.path(), std::strerror(errno));
}

}  // namespace

std::string temporary_name(const std::string& path) {
  static std::atomic<uint64_t> count = 0;
  while (true) {
    std::string name = fmt::format("{}.tmp-{}-{}-{}", path, host_name(), getpid(), count++);
    if (access(name.c_str(), F_OK) != 0) return name;
  }
}

std::string advice_for(int system_error) {
  switch (system_error) {
    case ENOSPC:
    case EDQUOT:
      return "free some space on that disk, or write to another one";
    case EFBIG:
      return "the file would exceed what the file system or `ulimit -f` allows";
    case EROFS:
      return "this disk is mounted read-only: write to another directory";
    case EACCES:
    case EPERM:
      return "change its permissions, or use another directory";
    case EMFILE:
    case ENFILE:
      return "too many files are open: raise `ulimit -n`";
    default:
      return "";
  }
}

bool is_input_error(int system_error) {
  switch (system_error) {
    case ENOENT:
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ENOTDIR:
    case EEXIST:
    case ENAMETOOLONG:
    case ELOOP:
      return true;
    default:
      return false;
  }
}

Error file_error(std::string_view path, std::string_view action, int system_error) {
  std::string line = fmt::format("{}: {}: {} (errno {})", path, action, std::strerror(system_error), system_error);
  if (std::string next = advice_for(system_error); !next.empty()) line += ": " + next;
  return Error(is_input_error(system_error) ? ErrorKind::input : ErrorKind::internal, line);
}

Descriptor::Descriptor(std::string path, int flags, std::string_view action)
    : path_(std::move(path)), descriptor_(open(path_.c_str(), flags | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) throw file_error(path_, action, errno);
}

Descriptor::Descriptor(Descriptor&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

Descriptor::~Descriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

uint64_t Descriptor::size_bytes() const {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) throw file_error(path_, "cannot tell its size", errno);
  return uint64_t(status.st_size);
}

uint64_t Descriptor::allocated_bytes() const {
  constexpr uint64_t kBlock_bytes = 512;  // of st_blocks, on every file system
  struct stat status;
  if (fstat(descriptor_, &status) != 0) throw file_error(path_, "cannot tell its size", errno);
  return uint64_t(status.st_blocks) * kBlock_bytes;
}

void Descriptor::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw in_mid_run(file_error(path_, "cannot write", errno));  // it could be opened for that
    bytes.remove_prefix(size_t(written));
  }
}

void Descriptor::write_at(uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(descriptor_, bytes.data(), bytes.size(), off_t(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw in_mid_run(file_error(path_, "cannot write", errno));
    bytes.remove_prefix(size_t(written));
    offset += uint64_t(written);
  }
}

void Descriptor::read_at(uint64_t offset, char* bytes, uint64_t count) const {
  for (uint64_t done = 0; done < count;) {
    const ssize_t got = pread(descriptor_, bytes + done, count - done, off_t(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_error(path_, "cannot read", errno);
    if (got == 0) throw input_error("{}: became shorter while it was read", path_);
    done += uint64_t(got);
  }
}

void Descriptor::truncate(uint64_t size_bytes) {
  if (ftruncate(descriptor_, off_t(size_bytes)) != 0) throw file_error(path_, "cannot shorten", errno);
}

void Descriptor::sync() {
  // EINVAL: a kind of file, or file system, that has nothing to sync.
  if (fsync(descriptor_) != 0 && errno != EINVAL) throw file_error(path_, "cannot sync to disk", errno);
}

void create_directories(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) throw file_error(path, "cannot create the directory", code.value());
  if (!std::filesystem::is_directory(path, code)) throw file_error(path, "cannot create the directory", EEXIST);
}

namespace {

template <class F>
void for_blocks_of_file(const std::string& path, uint64_t largest_bytes, const F& f) {
  Descriptor file(path, O_RDONLY, "cannot open for reading");
  char block[1 << 16];
  uint64_t size_bytes = 0;
  while (true) {
    ssize_t got = ::read(file.get(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_error(path, "cannot read", errno);
    if (got == 0) return;
    size_bytes += uint64_t(got);
    if (size_bytes > largest_bytes)
      throw input_error("{}: larger than the {} that such a file may have: is it the right one?", path,
                        human_bytes(double(largest_bytes)));
    f(std::string_view(block, size_t(got)));
  }
}

}  // namespace

std::string read_file(const std::string& path, uint64_t largest_bytes) {
  std::string content;
  for_blocks_of_file(path, largest_bytes, [&](std::string_view block) { content += block; });
  return content;
}

uint32_t crc32c_of_file(const std::string& path, uint64_t largest_bytes) {
  uint32_t crc = 0;
  for_blocks_of_file(path, largest_bytes,
                     [&](std::string_view block) { crc = crc32c(std::as_bytes(std::span(block)), crc); });
  return crc;
}

uint64_t free_disk_bytes(const std::string& path) {
  struct statvfs status;
  if (statvfs(path.c_str(), &status) != 0) throw file_error(path, "cannot tell the free space", errno);
  return uint64_t(status.f_bavail) * status.f_frsize;
}

void reserve_disk(const std::string& path, uint64_t bytes) {
  const bool existed = std::filesystem::exists(path);
  Descriptor file(path, O_WRONLY | O_CREAT, "cannot open for writing");
  // Compared first: a call that fails may have taken all that is left, from everybody, until it gives it back. A file
  // system that does not say what is free says 0.
  const uint64_t free_bytes = free_disk_bytes(path), has_bytes = file.allocated_bytes();
  int code = free_bytes > 0 && bytes > has_bytes && bytes - has_bytes > free_bytes ? ENOSPC : 0;
  while (code == 0 && bytes > 0 && fallocate(file.get(), 0, 0, off_t(bytes)) != 0)
    if (errno != EINTR) code = errno;
  if (code == EOPNOTSUPP || code == ENOSYS) code = free_bytes < bytes ? ENOSPC : 0;
  if (code == 0) return;
  if (!existed) unlink(path.c_str());
  throw file_error(
      path, fmt::format("{} are needed, {} are free", human_bytes(double(bytes)), human_bytes(double(free_bytes))),
      code);
}

void sync_file(const std::string& path) {
  Descriptor(path, O_RDONLY, "cannot open for a sync").sync();
}

void sync_directory(const std::string& path) {
  Descriptor(path, O_RDONLY | O_DIRECTORY, "cannot open the directory for a sync").sync();
}

void discard_file(const std::string& path) noexcept {
  [[maybe_unused]] const int truncated = ::truncate(path.c_str(), 0);
  ::unlink(path.c_str());
}

void rename_file(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) throw file_error(from, "cannot rename to " + to, errno);
  sync_directory(directory_of(to));
}

AppendFile::AppendFile(const std::string& path)
    : file_(path, O_RDWR | O_CREAT | O_APPEND, "cannot open for appending") {}

void AppendFile::append(std::string_view record) {
  const uint64_t before = file_.size_bytes();
  try {
    file_.write_all(record);
  } catch (...) {
    file_.truncate(before);
    throw;
  }
}

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)), file_(temporary_name(path_), O_WRONLY | O_CREAT | O_EXCL, "cannot open for writing") {}

AtomicFile::~AtomicFile() {
  if (!committed_) unlink(file_.path().c_str());
}

void AtomicFile::commit() {
  file_.sync();
  rename_file(file_.path(), path_);
  committed_ = true;
}

void write_file(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

RunLock::RunLock(const std::string& directory) : file_(lock_file(directory)) {
  switch (lock(file_)) {
    case Lock::taken:
      return;
    case Lock::busy:
      throw input_error("{}: another run works in this directory ({}): stop it, or choose another name", directory,
                        read_file(file_.path(), 4096));
    case Lock::unsupported:
      warn_of_no_lock(file_);
  }
}

std::optional<RunLock> RunLock::try_take(const std::string& directory, Beside beside) {
  Descriptor file = lock_file(directory);
  switch (lock(file)) {
    case Lock::taken:
      return RunLock(std::move(file));
    case Lock::busy:
      return std::nullopt;
    default:
      if (beside == Beside::nobody) {
        warn_of_no_lock(file);
        return RunLock(std::move(file));
      }
      throw input_error(
          "{}: {}: this file system has no locks, and runs side by side need them: choose another "
          "log.directory",
          file.path(), std::strerror(errno));
  }
}

}  // namespace keel::io
