// Disks that are full or refuse.
#pragma once

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

namespace keel::testing {

// A file system of its own of `size`, mounted on a directory; ok() is false where this process may not mount.
class SmallDisk {
 public:
  SmallDisk(const std::string& path, const std::string& size) : path_(path) {
    std::filesystem::create_directories(path);
    ok_ = mount("tmpfs", path.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (ok_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool ok() const { return ok_; }

 private:
  std::string path_;
  bool ok_;
};

// Makes a directory read-only, even for root; ok() is false where that cannot be done.
class ReadOnly {
 public:
  explicit ReadOnly(const std::string& path) : path_(path) {
    bound_ = mount(path.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) == 0;
    ok_ = bound_ && mount(nullptr, path.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) == 0;
    if (!bound_ && getuid() != 0) ok_ = chmod(path.c_str(), 0555) == 0;
  }
  ~ReadOnly() {
    if (bound_) umount2(path_.c_str(), MNT_DETACH);
    if (!bound_) chmod(path_.c_str(), 0755);
  }
  bool ok() const { return ok_; }

 private:
  std::string path_;
  bool bound_, ok_;
};

// No file of this process may grow beyond `bytes`: writes fail with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int);
};

}  // namespace keel::testing
