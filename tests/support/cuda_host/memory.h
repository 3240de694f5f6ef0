// Device memory and pinned memory: host memory that ends at an inaccessible page, stays unmapped once it is freed, and
// is accessible only while a kernel or a copy runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace keel::cuda_host {

enum class MemoryKind { device, pinned };

// How much one simulated device has: an H200.
constexpr size_t kDeviceBytes = size_t(141) << 30;

// Null when the device has not that much left. Addresses are multiples of 16, as near to the page behind as can be.
void* allocate(size_t size_bytes, MemoryKind kind, int device = 0);
// False where no such allocation lives. A write behind the end that the page could not catch is a recorded fault.
bool release(void* address, MemoryKind kind);
size_t allocated_bytes();

// Whether all bytes lie in one live allocation of that kind.
bool lies_in(const void* address, size_t size_bytes, MemoryKind kind);
// The device that the memory was allocated on; -1 where none lives.
int device_of_memory(const void* address);
// Whether any byte of an allocation, live or freed, is there.
bool is_known(const void* address);
// "12 bytes behind an allocation of 400 bytes"
std::string describe_address(const void* address);

// Device memory as if nobody had written it yet.
void make_fresh(void* address, size_t size_bytes);

// While one lives, device memory is accessible.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// All device memory, to run a kernel twice from the same start. Memory that still holds the fresh pattern counts as
// never written: the second run begins with other values there.
class Snapshot {
 public:
  // What lies there now. Taking again reuses the host memory of the last time.
  void take();
  void restore_with_other_fresh_values() const;
  // Where the memory of this snapshot (the first run's result) differs from what lies there now (the second's): a
  // sentence, or empty. Puts this snapshot back.
  std::string compare_and_restore() const;

 private:
  struct Piece {
    std::byte* pages;  // where the allocation's pages begin
    std::byte* begin;
    size_t size_bytes;
    std::vector<std::byte> bytes;  // all of its pages
    const std::byte* first_run() const { return bytes.data() + (begin - pages); }
  };
  static bool is_untouched(const Piece& piece, size_t at);
  std::vector<Piece> pieces_;
};

}  // namespace keel::cuda_host
