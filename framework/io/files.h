// Files of a run: written so that a kill or a full disk at any moment leaves the old content or the new one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "framework/base/error.h"

namespace keel::io {

// "DIR/x: cannot open for writing: Read-only file system (errno 30): choose another directory". An input error where
// the user named something that is absent or not allowed; `system_error` is an errno.
Error file_error(std::string_view path, std::string_view action, int system_error);
// What to do about an errno, or "". Whether it comes from a name or a permission, which the user can change.
std::string advice_for(int system_error);
bool is_input_error(int system_error);

// With the directories above; one that exists is fine.
void create_directories(const std::string& path);
// An error where it is absent, not a file, or above the limit.
std::string read_file(const std::string& path, uint64_t largest_bytes);
// The CRC32C of a file's content, which need not fit into memory. Errors as there.
uint32_t crc32c_of_file(const std::string& path, uint64_t largest_bytes);
// What a user without privileges may still write to the disk that `path` (which exists) lies on.
uint64_t free_disk_bytes(const std::string& path);
// Takes `bytes` of the disk for the file `path`, created where absent, or throws with the size needed and the size
// free; a file that this created is then removed. Before a shared file is written by many ranks, because MPI-IO may
// wait for ever when one of them finds the disk full. Where the file system cannot reserve, the free space is compared.
void reserve_disk(const std::string& path, uint64_t bytes);

void sync_file(const std::string& path);       // its content reaches the disk
void sync_directory(const std::string& path);  // its names do
// Removes a file that some process may still have open: its room on the disk is free at once. Nothing where it is
// absent.
void discard_file(const std::string& path) noexcept;
// Replaces `to` with `from`, of the same directory, durably.
void rename_file(const std::string& from, const std::string& to);

// A name beside `path` that no other process takes, on any host, for what becomes `path` once it is whole.
std::string temporary_name(const std::string& path);

// A file descriptor and what messages call it.
class Descriptor {
 public:
  // open(2) with O_CLOEXEC; `action` as in "cannot open for writing".
  Descriptor(std::string path, int flags, std::string_view action);
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) = delete;
  ~Descriptor();
  int get() const { return descriptor_; }
  const std::string& path() const { return path_; }
  uint64_t size_bytes() const;
  // Of the disk: less than the size where there are holes, more where room is reserved.
  uint64_t allocated_bytes() const;
  void write_all(std::string_view bytes);
  void write_at(uint64_t offset, std::string_view bytes);            // all of them; where write_all goes on stays
  void read_at(uint64_t offset, char* bytes, uint64_t count) const;  // all of them
  void truncate(uint64_t size_bytes);
  void sync();

 private:
  std::string path_;
  int descriptor_;
};

// A file of records, only appended to. A record is one write: a killed process leaves at most its last one broken, and
// after a failed one (full disk) the file ends behind the record before. Other processes may read at any time.
class AppendFile {
 public:
  explicit AppendFile(const std::string& path);  // created where absent
  void append(std::string_view record);
  const std::string& path() const { return file_.path(); }

 private:
  Descriptor file_;
};

// A new content for `path`, in a temporary file beside it until commit(); without a commit it is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  void write(std::string_view bytes) { file_.write_all(bytes); }
  void write_at(uint64_t offset, std::string_view bytes) { file_.write_at(offset, bytes); }
  void sync() { file_.sync(); }  // so that nothing but the name can fail, where several files are to come together
  void commit();                 // synced, renamed, directory synced
  const std::string& temporary_path() const { return file_.path(); }

 private:
  std::string path_;
  Descriptor file_;
  bool committed_ = false;
};

void write_file(const std::string& path, std::string_view content);  // atomic

// This process is the only one that works in a run's directory, as long as this lives. The file "lock" in it names the
// holder; the kernel frees it however the process ends. On a file system without locks: a warning, and no protection.
class RunLock {
 public:
  // An input error that names the host, process and start of whoever has it.
  explicit RunLock(const std::string& directory);
  // Nothing where somebody has it. On a file system without locks, where nobody could know, an input error; where this
  // process has nobody beside it, a warning.
  enum class Beside { others, nobody };
  static std::optional<RunLock> try_take(const std::string& directory, Beside beside);

 private:
  explicit RunLock(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

}  // namespace keel::io
