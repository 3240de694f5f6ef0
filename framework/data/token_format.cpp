#include "framework/data/token_format.h"

#include <string_view>

#include "framework/base/error.h"
#include "framework/base/text.h"

namespace keel::data {
namespace {

constexpr std::string_view numpy_magic("\x93NUMPY", 6);

TokenType index_type(const MappedFile& index) {
  switch (int code = index.at<uint8_t>(17)) {
    case 1:
      return TokenType::uint8;
    case 4:
      return TokenType::int32;
    case 5:
      return TokenType::int64;
    case 8:
      return TokenType::uint16;
    default:
      throw input_error("{}: byte 17: type code {} is not one for token ids (1 uint8, 4 int32, 5 int64, 8 uint16)",
                        index.path(), code);
  }
}

void check_index_header(const MappedFile& index) {
  if (index.size_bytes() < kIndexHeader_bytes)
    throw input_error("{}: {} bytes are too few for a header of {}; the file is cut short", index.path(),
                      index.size_bytes(), kIndexHeader_bytes);
  if (std::string_view(index.data(), 9) != std::string_view(kIndexMagic, 9))
    throw input_error("{}: byte 0: not an index of tokens (it does not begin with MMIDIDX)", index.path());
  if (auto version = index.at<uint64_t>(9); version != 1)
    throw input_error("{}: byte 9: version {} is unknown; version 1 is read", index.path(), version);
}

// Sizes lie without gaps from the first byte of the .bin to its last. Returns the number of tokens.
int64_t check_sequences(const MappedFile& index, const MappedFile& tokens, const IndexLayout& layout) {
  const int64_t item = size_bytes_of(layout.tokens.type), end = tokens.size_bytes();
  int64_t next_byte = 0;
  for (int64_t i = 0; i < layout.sequences; ++i) {
    const int64_t size_at = kIndexHeader_bytes + 4 * i, pointer_at = layout.pointers_byte + 8 * i;
    const int64_t count = index.at<int32_t>(size_at), pointer = index.at<int64_t>(pointer_at);
    if (count < 0) throw input_error("{}: byte {}: sequence {} has {} tokens", index.path(), size_at, i, count);
    if (pointer != next_byte)
      throw input_error(
          "{}: byte {}: sequence {} begins at byte {} of the tokens, where {} is due: sequences overlap "
          "or leave a gap",
          index.path(), pointer_at, i, pointer, next_byte);
    if (count > (end - next_byte) / item)
      throw input_error(
          "{}: byte {}: sequence {} of {} {} tokens ends beyond {} ({} bytes); it is cut short or of "
          "another type",
          index.path(), size_at, i, count, name_of(layout.tokens.type), tokens.path(), end);
    next_byte += count * item;
  }
  if (next_byte != end)
    throw input_error("{}: {} bytes, but {} describes {} bytes of {} tokens; do the two belong together?",
                      tokens.path(), end, index.path(), next_byte, name_of(layout.tokens.type));
  return next_byte / item;
}

void check_boundaries(const MappedFile& index, const IndexLayout& layout) {
  int64_t before = 0;
  for (int64_t i = 0; i <= layout.documents; ++i) {
    const int64_t at = layout.boundaries_byte + 8 * i, boundary = index.at<int64_t>(at);
    const bool ends_right = (i > 0 || boundary == 0) && (i < layout.documents || boundary == layout.sequences);
    if (!ends_right || boundary < before || boundary > layout.sequences)
      throw input_error("{}: byte {}: document {} begins at sequence {}; the boundaries must rise from 0 to {}",
                        index.path(), at, i, boundary, layout.sequences);
    before = boundary;
  }
}

// The text after 'key': in NumPy's header, without leading blanks; "" where the key is missing.
std::string_view numpy_value(std::string_view header, std::string_view key) {
  size_t found = header.find(key);
  if (found == header.npos) return {};
  std::string_view rest = header.substr(found + key.size());
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  return rest;
}

TokenType numpy_type(const MappedFile& file, std::string_view header) {
  std::string_view value = numpy_value(header, "'descr':");
  for (auto [text, type] : {std::pair<std::string_view, TokenType>{"'|u1'", TokenType::uint8},
                            {"'<u2'", TokenType::uint16},
                            {"'<i4'", TokenType::int32},
                            {"'<u4'", TokenType::uint32},
                            {"'<i8'", TokenType::int64}})
    if (value.starts_with(text)) return type;
  throw input_error("{}: its type is {}; token ids are little-endian uint8, uint16, int32, uint32 or int64",
                    file.path(), value.empty() ? "missing" : value.substr(0, value.find(',')));
}

int64_t numpy_length(const MappedFile& file, std::string_view header) {
  std::string_view value = numpy_value(header, "'shape':");
  std::string_view shape = value.substr(0, std::min(value.size(), value.find(')') + 1));
  int64_t length = 0;
  bool one_dim = shape.size() > 3 && shape.starts_with('(') && shape.ends_with(",)");
  if (!one_dim || !parse_integer(shape.substr(1, shape.size() - 3), length) || length < 0)
    throw input_error("{}: its shape is {}; tokens lie in one dimension, like (1000,)", file.path(),
                      shape.empty() ? "missing" : shape);
  return length;
}

}  // namespace

uint8_t index_code(TokenType type) {
  switch (type) {
    case TokenType::uint8:
      return 1;
    case TokenType::uint16:
      return 8;
    case TokenType::int32:
      return 4;
    case TokenType::int64:
      return 5;
    case TokenType::uint32:
      break;
  }
  throw Error(ErrorKind::internal, "the index has no code for uint32 tokens");
}

IndexLayout read_index(const MappedFile& index, const MappedFile& tokens) {
  check_index_header(index);
  IndexLayout layout;
  layout.tokens.type = index_type(index);
  const auto sequences = index.at<uint64_t>(18), boundaries = index.at<uint64_t>(26);
  const auto rest = uint64_t(index.size_bytes() - kIndexHeader_bytes);
  // Each count is bounded by the file before they are put together, so that nothing can overflow.
  if (sequences > rest / 12 || boundaries > rest / 8 || sequences * 12 + boundaries * 8 != rest)
    throw input_error(
        "{}: byte 18: {} sequences and {} boundaries of documents do not make {} bytes; the file is cut "
        "short or not an index of text",
        index.path(), sequences, boundaries, index.size_bytes());
  if (boundaries == 0) throw input_error("{}: byte 26: no boundaries of documents; at least one is due", index.path());
  layout.sequences = int64_t(sequences);
  layout.documents = int64_t(boundaries) - 1;
  layout.pointers_byte = kIndexHeader_bytes + 4 * layout.sequences;
  layout.boundaries_byte = layout.pointers_byte + 8 * layout.sequences;
  layout.tokens.tokens = check_sequences(index, tokens, layout);
  check_boundaries(index, layout);
  return layout;
}

TokenLayout read_llmc(const MappedFile& file) {
  constexpr int64_t kHeader_bytes = 1024;
  if (file.size_bytes() < kHeader_bytes)
    throw input_error("{}: {} bytes are too few for llm.c's header of {}, and there is no .idx beside it", file.path(),
                      file.size_bytes(), kHeader_bytes);
  const auto magic = file.at<int32_t>(0), version = file.at<int32_t>(4), tokens = file.at<int32_t>(8);
  if (magic != 20240520 && magic != 20240801)
    throw input_error(
        "{}: byte 0: {} is not llm.c's magic number (20240520 or 20240801), and there is no .idx beside "
        "it; for ids without a header, give their type beside the path: {{path: {}, type: uint16}}, or uint32",
        file.path(), magic, file.path());
  const bool gpt2 = magic == 20240520;
  if (version != (gpt2 ? 1 : 7))
    throw input_error("{}: byte 4: version {} is unknown; {} is read", file.path(), version, gpt2 ? 1 : 7);
  TokenLayout layout{gpt2 ? TokenType::uint16 : TokenType::uint32, kHeader_bytes, tokens};
  if (tokens < 0 || file.size_bytes() - kHeader_bytes != int64_t(tokens) * size_bytes_of(layout.type))
    throw input_error("{}: byte 8: {} {} tokens do not fill the {} bytes after the header; the file is cut short",
                      file.path(), tokens, name_of(layout.type), file.size_bytes() - kHeader_bytes);
  return layout;
}

bool is_numpy(const MappedFile& file) {
  return file.size_bytes() >= 10 && std::string_view(file.data(), 6) == numpy_magic;
}

TokenLayout read_numpy(const MappedFile& file) {
  if (!is_numpy(file))
    throw input_error(
        "{}: byte 0: not a NumPy file (or cut short); for ids without a header, as OLMo-core and dolma write them, "
        "give "
        "their type beside the path: {{path: {}, type: uint16}}, or uint32",
        file.path(), file.path());
  const int major = file.at<uint8_t>(6), start = major == 1 ? 10 : 12;
  if (major < 1 || major > 3 || file.size_bytes() < start)
    throw input_error("{}: byte 6: version {} is unknown; 1 to 3 are read", file.path(), major);
  const int64_t length = major == 1 ? file.at<uint16_t>(8) : file.at<uint32_t>(8);
  if (length > file.size_bytes() - start)
    throw input_error("{}: byte 8: a header of {} bytes in a file of {}; it is cut short", file.path(), length,
                      file.size_bytes());
  std::string_view header(file.data() + start, size_t(length));
  if (!numpy_value(header, "'fortran_order':").starts_with("False"))
    throw input_error("{}: not in C order; save it again with numpy.save", file.path());
  TokenLayout layout{numpy_type(file, header), start + length, numpy_length(file, header)};
  const int64_t bytes = file.size_bytes() - layout.first_byte, item = size_bytes_of(layout.type);
  if (bytes % item != 0 || layout.tokens != bytes / item)
    throw input_error("{}: {} {} tokens do not fill the {} bytes after the header; the file is cut short", file.path(),
                      layout.tokens, name_of(layout.type), bytes);
  return layout;
}

TokenLayout read_bare(const MappedFile& file, TokenType type) {
  if (is_numpy(file)) throw input_error("{}: has a header that says its type; leave the key out", file.path());
  const int64_t item = size_bytes_of(type);
  if (file.size_bytes() % item != 0)
    throw input_error("{}: {} bytes are no whole number of {} tokens", file.path(), file.size_bytes(), name_of(type));
  return {type, 0, file.size_bytes() / item};
}

}  // namespace keel::data
