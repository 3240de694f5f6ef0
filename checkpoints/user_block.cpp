#include "checkpoints/user_block.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "framework/io/crc32c.h"
#include "framework/io/files.h"

namespace keel::checkpoints {
namespace {

constexpr char kMagic[8] = {'K', 'E', 'E', 'L', 'C', 'K', 'P', '1'};

// Little-endian, as every machine that this runs on.
struct Header {
  char magic[8];
  uint32_t header_crc;  // of the header and its ranges, with this field zero
  uint32_t rest_crc;    // of every byte after the block that is in no range
  uint64_t block_bytes;
  uint64_t file_bytes;
  uint64_t ranges;
};

std::vector<std::byte> read_bytes(const io::Descriptor& file, uint64_t begin, uint64_t size) {
  std::vector<std::byte> bytes(size);
  for (uint64_t done = 0; done < size;) {
    const ssize_t got = pread(file.get(), bytes.data() + done, size - done, off_t(begin + done));
    if (got < 0) throw io::file_error(file.path(), "cannot read", errno);
    if (got == 0) throw input_error("{}: cut short at byte {}", file.path(), begin + done);
    done += uint64_t(got);
  }
  return bytes;
}

// Over [begin, end), in pieces.
uint32_t crc_of(const io::Descriptor& file, uint64_t begin, uint64_t end, uint32_t crc) {
  constexpr uint64_t kPiece = uint64_t(1) << 20;
  for (; begin < end; begin += std::min(kPiece, end - begin))
    crc = io::crc32c(read_bytes(file, begin, std::min(kPiece, end - begin)), crc);
  return crc;
}

uint32_t crc_outside(const io::Descriptor& file, const Header& header, const std::vector<ByteRange>& ranges) {
  uint64_t at = header.block_bytes;
  uint32_t crc = 0;
  for (const ByteRange& range : ranges) {
    crc = crc_of(file, at, range.begin, crc);
    at = range.begin + range.size;
  }
  return crc_of(file, at, header.file_bytes, crc);
}

uint32_t crc_of_header(Header header, const std::vector<ByteRange>& ranges) {
  header.header_crc = 0;
  return io::crc32c(std::as_bytes(std::span(ranges)), io::crc32c(std::as_bytes(std::span(&header, 1))));
}

// In order, inside the file, not overlapping.
bool sane(const Header& header, const std::vector<ByteRange>& ranges) {
  uint64_t at = header.block_bytes;
  for (const ByteRange& range : ranges) {
    if (range.begin < at || range.begin > header.file_bytes || range.size > header.file_bytes - range.begin)
      return false;
    at = range.begin + range.size;
  }
  return true;
}

}  // namespace

uint64_t user_block_bytes(uint64_t ranges) {
  return std::bit_ceil(std::max<uint64_t>(4096, sizeof(Header) + ranges * sizeof(ByteRange)));
}

void write_user_block(const std::string& path, uint64_t block_bytes, std::vector<ByteRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  io::Descriptor file(path, O_RDWR, "cannot open for writing");
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.block_bytes = block_bytes;
  header.file_bytes = file.size_bytes();
  header.ranges = ranges.size();
  require(sane(header, ranges), "{}: tiles overlap or lie outside the file", path);
  header.rest_crc = crc_outside(file, header, ranges);
  header.header_crc = crc_of_header(header, ranges);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(reinterpret_cast<const char*>(ranges.data()), ranges.size() * sizeof(ByteRange));
  require(bytes.size() <= block_bytes, "{}: a block of {} bytes is too small", path, block_bytes);
  file.write_all(bytes);
  file.sync();
}

void verify_user_block(const std::string& path) {
  io::Descriptor file(path, O_RDONLY, "cannot open");
  const uint64_t size = file.size_bytes();
  if (size < sizeof(Header)) throw input_error("{}: {} bytes are no checkpoint", path, size);
  Header header;
  std::memcpy(&header, read_bytes(file, 0, sizeof header).data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    throw input_error("{}: not a Keel checkpoint (its first bytes are others)", path);
  if (header.file_bytes != size)
    throw input_error("{}: {} bytes of {}: cut short, or still being written", path, size, header.file_bytes);
  // What the block can hold bounds what is read.
  if (header.block_bytes > size || header.ranges > header.block_bytes / sizeof(ByteRange))
    throw input_error("{}: damaged header", path);
  std::vector<ByteRange> ranges(header.ranges);
  const auto bytes = read_bytes(file, sizeof header, header.ranges * sizeof(ByteRange));
  if (!bytes.empty()) std::memcpy(ranges.data(), bytes.data(), bytes.size());
  if (header.header_crc != crc_of_header(header, ranges) || !sane(header, ranges))
    throw input_error("{}: damaged header", path);
  if (header.rest_crc != crc_outside(file, header, ranges))
    throw input_error("{}: damaged: a byte outside the tensors has changed", path);
}

}  // namespace keel::checkpoints
