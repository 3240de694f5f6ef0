// The headers of the token file formats, checked. All numbers are little-endian.
//
//   PREFIX.idx   char[9] "MMIDIDX\0\0", uint64 version = 1, uint8 type (1 uint8, 4 int32, 5 int64, 8 uint16),
//                uint64 S sequences, uint64 N boundaries (documents + 1),
//                int32 tokens[S], int64 first byte in the .bin [S], int64 first sequence of each document [N]
//   PREFIX.bin   the ids of all sequences, without gaps
//   llm.c        int32 magic, version, tokens, 253 more; ids: 20240520, 1, uint16 or 20240801, 7, uint32
//   bare         the ids alone, of a type that the reader has to know
//   NumPy        "\x93NUMPY", uint8 major, minor, uint16 (major 1) or uint32 length, Python dictionary, ids
#pragma once

#include <cstdint>
#include <string>

#include "framework/data/mapped_file.h"
#include "framework/data/token_file.h"

namespace keel::data {

inline constexpr char kIndexMagic[] = "MMIDIDX\0";  // with its own end, nine bytes
inline constexpr int64_t kIndexHeader_bytes = 34;

struct TokenLayout {
  TokenType type = TokenType::uint16;
  int64_t first_byte = 0;  // of the ids
  int64_t tokens = 0;
};

struct IndexLayout {
  TokenLayout tokens;
  int64_t sequences = 0;
  int64_t documents = 0;
  int64_t pointers_byte = 0;
  int64_t boundaries_byte = 0;
};

uint8_t index_code(TokenType type);

// Errors: one line with the file, the byte and the value, for whatever does not fit the format or the files' sizes.
IndexLayout read_index(const MappedFile& index, const MappedFile& tokens);
TokenLayout read_llmc(const MappedFile& file);
TokenLayout read_numpy(const MappedFile& file);
TokenLayout read_bare(const MappedFile& file, TokenType type);
bool is_numpy(const MappedFile& file);

}  // namespace keel::data
