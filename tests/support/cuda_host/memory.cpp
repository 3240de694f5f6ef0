#include "tests/support/cuda_host/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/support/cuda_host/faults.h"
#include "tests/support/cuda_host/settings.h"

namespace keel::cuda_host {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 16;
constexpr size_t kWord = 4;  // what counts as written or not

struct Allocation {
  std::byte* mapping;  // one inaccessible page, the pages of memory, one inaccessible page
  size_t mapping_bytes;
  std::byte* begin;
  size_t size_bytes;
  MemoryKind kind;
  int device;
  bool live;

  std::byte* pages() const { return mapping + kPage; }
  size_t pages_bytes() const { return mapping_bytes - 2 * kPage; }
  std::byte* pages_end() const { return pages() + pages_bytes(); }
};

std::mutex mutex;
int accesses = 0;     // DeviceAccess objects
size_t device_bytes;  // of live allocations

// By the first byte of the mapping. Those that were freed keep their addresses, so that none comes back.
using Allocations = std::map<std::byte*, Allocation>;
Allocations& live() {
  static Allocations all;
  return all;
}
Allocations& freed() {
  static Allocations all;
  return all;
}

const Allocation* find_in(const Allocations& all, const std::byte* at) {
  auto next = all.upper_bound(const_cast<std::byte*>(at));
  if (next == all.begin()) return nullptr;
  const Allocation& one = std::prev(next)->second;
  return at < one.mapping + one.mapping_bytes ? &one : nullptr;
}

const Allocation* find(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  const Allocation* one = find_in(live(), at);
  return one ? one : find_in(freed(), at);
}

// What a word holds before anybody writes it: in the first run a NaN that no arithmetic makes, in the second a small
// number. Each word has its own, so that a copied one is not taken for a fresh one.
uint32_t fresh_word(const std::byte* at, int run) {
  uint64_t state = (reinterpret_cast<uintptr_t>(at) / kWord + 1) * 0x9e3779b97f4a7c15u;
  state = (state ^ state >> 29) * 0xbf58476d1ce4e5b9u;
  const auto random = uint32_t(state >> 40);
  return run == 0 ? 0x7fa00000u | random % 0x100000u : 0x3c3c0000u | random % 0x10000u;
}

void make_word_fresh(std::byte* at, int run) {
  const uint32_t word = fresh_word(at, run);
  std::memcpy(at, &word, kWord);
}

bool is_fresh(const std::byte* at) {
  uint32_t word;
  std::memcpy(&word, at, kWord);
  return word >> 20 == 0x7fa && word == fresh_word(at, 0);
}

// The bytes of the pages before and behind an allocation, which belong to nobody.
void fill_slack(std::byte* from, std::byte* to, int run) {
  std::memset(from, run == 0 ? 0xff : 0x3c, size_t(to - from));
}

void require_untouched(const Allocation& one, std::byte* from, std::byte* to, const char* where) {
  for (std::byte* at = from; at < to; ++at)
    if (*at != std::byte(0xff))
      return record_fault(fmt::format("something wrote {} bytes {} an allocation of {} bytes",
                                      at < one.begin ? one.begin - at : at - from, where, one.size_bytes));
}

void protect(const Allocation& one, bool accessible) {
  mprotect(one.pages(), one.pages_bytes(), accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void protect_all(bool accessible) {
  for (auto& [mapping, one] : live())
    if (one.kind == MemoryKind::device) protect(one, accessible);
}

}  // namespace

void* allocate(size_t size_bytes, MemoryKind kind, int device) {
  std::lock_guard lock(mutex);
  if (kind == MemoryKind::device && device_bytes + size_bytes > kDeviceBytes) return nullptr;
  const size_t pages = (size_bytes + kPage - 1) / kPage * kPage;
  void* mapping = mmap(nullptr, pages + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  Allocation one{static_cast<std::byte*>(mapping), pages + 2 * kPage, nullptr, size_bytes, kind, device, true};
  one.begin = one.pages_end() - (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  protect(one, true);
  for (std::byte* at = one.begin; at < one.pages_end(); at += kWord) make_word_fresh(at, 0);
  fill_slack(one.pages(), one.begin, 0);
  fill_slack(one.begin + size_bytes, one.pages_end(), 0);
  if (kind == MemoryKind::device) {
    device_bytes += size_bytes;
    if (checks_are_on() && accesses == 0) protect(one, false);
  }
  live()[one.mapping] = one;
  return one.begin;
}

bool release(void* address, MemoryKind kind) {
  std::lock_guard lock(mutex);
  const Allocation* found = find(address);
  if (!found || !found->live || found->begin != address || found->kind != kind) return false;
  Allocation one = *found;
  protect(one, true);
  require_untouched(one, one.pages(), one.begin, "before");
  require_untouched(one, one.begin + one.size_bytes, one.pages_end(), "behind the end of");
  one.live = false;
  if (kind == MemoryKind::device) device_bytes -= one.size_bytes;
  madvise(one.pages(), one.pages_bytes(), MADV_DONTNEED);
  protect(one, false);
  live().erase(one.mapping);
  freed()[one.mapping] = one;
  return true;
}

size_t allocated_bytes() {
  std::lock_guard lock(mutex);
  return device_bytes;
}

bool lies_in(const void* address, size_t size_bytes, MemoryKind kind) {
  std::lock_guard lock(mutex);
  const Allocation* one = find(address);
  const auto* at = static_cast<const std::byte*>(address);
  return one && one->live && one->kind == kind && at >= one->begin && at + size_bytes <= one->begin + one->size_bytes;
}

int device_of_memory(const void* address) {
  std::lock_guard lock(mutex);
  const Allocation* one = find(address);
  return one && one->live && one->kind == MemoryKind::device ? one->device : -1;
}

bool is_known(const void* address) {
  std::lock_guard lock(mutex);
  return find(address) != nullptr;
}

std::string describe_address(const void* address) {
  const Allocation* one = find(address);
  if (!one) return "no device memory is there";
  const auto* at = static_cast<const std::byte*>(address);
  if (!one->live) return fmt::format("device memory of {} bytes that was freed", one->size_bytes);
  if (at < one->begin)
    return fmt::format("{} bytes before an allocation of {} bytes", one->begin - at, one->size_bytes);
  if (at >= one->begin + one->size_bytes)
    return fmt::format("{} bytes behind the end of an allocation of {} bytes",
                       at - one->begin - std::ptrdiff_t(one->size_bytes), one->size_bytes);
  return "device memory, which the host cannot access";
}

void make_fresh(void* address, size_t size_bytes) {
  DeviceAccess access;
  auto* at = static_cast<std::byte*>(address);
  for (size_t i = 0; i + kWord <= size_bytes; i += kWord) make_word_fresh(at + i, 0);
}

DeviceAccess::DeviceAccess() {
  std::lock_guard lock(mutex);
  if (++accesses == 1 && checks_are_on()) protect_all(true);
}

DeviceAccess::~DeviceAccess() {
  std::lock_guard lock(mutex);
  if (--accesses == 0 && checks_are_on()) protect_all(false);
}

void Snapshot::take() {
  std::lock_guard lock(mutex);
  size_t count = 0;
  for (auto& [mapping, one] : live()) {
    if (one.kind != MemoryKind::device) continue;
    if (pieces_.size() == count) pieces_.emplace_back();
    Piece& piece = pieces_[count++];
    piece.pages = one.pages();
    piece.begin = one.begin;
    piece.size_bytes = one.size_bytes;
    piece.bytes.assign(one.pages(), one.pages_end());
  }
  pieces_.resize(count);
}

void Snapshot::restore_with_other_fresh_values() const {
  for (const Piece& piece : pieces_) {
    std::memcpy(piece.pages, piece.bytes.data(), piece.bytes.size());
    for (size_t i = 0; i + kWord <= piece.size_bytes; i += kWord)
      if (is_fresh(piece.begin + i)) make_word_fresh(piece.begin + i, 1);
    fill_slack(piece.pages, piece.begin, 1);
    fill_slack(piece.begin + piece.size_bytes, piece.pages + piece.bytes.size(), 1);
  }
}

// Whether a byte that differs belonged to a word that nobody had written, and still does.
bool Snapshot::is_untouched(const Piece& piece, size_t at) {
  const std::byte* word = piece.begin + at / kWord * kWord;
  const uint32_t first = fresh_word(word, 0), second = fresh_word(word, 1);
  const size_t byte = at % kWord;
  return reinterpret_cast<const std::byte*>(&first)[byte] == piece.first_run()[at] &&
         reinterpret_cast<const std::byte*>(&second)[byte] == piece.begin[at];
}

std::string Snapshot::compare_and_restore() const {
  std::string sentence;
  for (const Piece& piece : pieces_) {
    const std::byte* first = piece.first_run();
    const bool same = std::memcmp(piece.begin, first, piece.size_bytes) == 0;
    for (size_t at = 0; at < piece.size_bytes && !same && sentence.empty(); ++at) {
      if (piece.begin[at] == first[at] || is_untouched(piece, at)) continue;
      sentence = fmt::format(
          "two runs of one kernel left different bytes at {} of an allocation of {} bytes: a race between its threads, "
          "or a read of memory that nobody wrote",
          at, piece.size_bytes);
    }
    std::memcpy(piece.pages, piece.bytes.data(), piece.bytes.size());
  }
  return sentence;
}

}  // namespace keel::cuda_host
