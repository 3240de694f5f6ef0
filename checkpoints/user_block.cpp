#include "checkpoints/user_block.h"

#include <fcntl.h>

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
  uint32_t block_crc;  // of the whole block, with this field zero
  uint32_t rest_crc;   // of every byte after the block that is in no range
  uint64_t block_bytes;
  uint64_t file_bytes;
  uint64_t ranges;
};

std::vector<std::byte> read_bytes(const io::Descriptor& file, uint64_t begin, uint64_t size) {
  std::vector<std::byte> bytes(size);
  file.read_at(begin, reinterpret_cast<char*>(bytes.data()), size);
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

// The block as it lies in the file: header, ranges, zeros.
std::string block_of(Header header, const std::vector<ByteRange>& ranges) {
  std::string block(header.block_bytes, '\0');
  std::ranges::copy(std::as_bytes(std::span(ranges)), std::as_writable_bytes(std::span(block)).begin() + sizeof header);
  header.block_crc = 0;
  std::memcpy(block.data(), &header, sizeof header);
  header.block_crc = io::crc32c(std::as_bytes(std::span(block)));
  std::memcpy(block.data(), &header, sizeof header);
  return block;
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
  require(user_block_bytes(ranges.size()) <= block_bytes, "{}: a block of {} bytes is too small", path, block_bytes);
  header.rest_crc = crc_outside(file, header, ranges);
  file.write_all(block_of(header, ranges));
  file.sync();
}

std::string header_bytes(const std::string& path) {
  const io::Descriptor file(path, O_RDONLY, "cannot open");
  const auto bytes = read_bytes(file, 0, std::min<uint64_t>(sizeof(Header), file.size_bytes()));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void verify_user_block(const std::string& path) {
  io::Descriptor file(path, O_RDONLY, "cannot open");
  const uint64_t size = file.size_bytes();
  if (size < sizeof(Header)) throw input_error("{}: {} bytes are no checkpoint", path, size);
  Header header;
  std::memcpy(&header, read_bytes(file, 0, sizeof header).data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    throw input_error("{}: not a Keel checkpoint, or its first bytes are damaged", path);
  if (header.file_bytes != size)
    throw input_error("{}: {} bytes of {}: cut short, or still being written", path, size, header.file_bytes);
  // What the block can hold bounds what is read.
  if (header.block_bytes > size || header.ranges > (header.block_bytes - sizeof header) / sizeof(ByteRange) ||
      header.block_bytes < user_block_bytes(header.ranges))
    throw input_error("{}: damaged: its first block contradicts itself", path);
  std::vector<ByteRange> ranges(header.ranges);
  const auto block = read_bytes(file, 0, header.block_bytes);
  const std::span stored = std::as_bytes(std::span(block)).subspan(sizeof header, ranges.size() * sizeof(ByteRange));
  std::ranges::copy(stored, std::as_writable_bytes(std::span(ranges)).begin());
  if (std::memcmp(block.data(), block_of(header, ranges).data(), block.size()) != 0 || !sane(header, ranges))
    throw input_error("{}: damaged: its first block has changed", path);
  if (header.rest_crc != crc_outside(file, header, ranges))
    throw input_error("{}: damaged: a byte outside the tensors has changed", path);
}

}  // namespace keel::checkpoints
