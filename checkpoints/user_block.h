// The block of our own before HDF5's bytes: enough to know, without HDF5, that a file is whole and ours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace keel::checkpoints {

// Bytes of raw tiles, which have checksums of their own inside the file.
struct ByteRange {
  uint64_t begin = 0, size = 0;
};

// Bytes that the block needs for this many ranges: a power of two, as HDF5 wants.
uint64_t user_block_bytes(uint64_t ranges);

// After the file is complete and closed: writes the block, with a checksum over every byte that is in no range.
void write_user_block(const std::string& path, uint64_t block_bytes, std::vector<ByteRange> ranges);

// The bytes that tell one checkpoint from another, checksums included; fewer where the file is shorter.
std::string header_bytes(const std::string& path);

// Throws an input error where the file is no checkpoint, is cut short, or a byte outside the tiles has changed.
void verify_user_block(const std::string& path);

}  // namespace keel::checkpoints
