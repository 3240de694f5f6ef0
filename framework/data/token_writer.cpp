#include "framework/data/token_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "framework/base/error.h"
#include "framework/data/token_format.h"

namespace keel::data {
namespace {

std::FILE* create(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w+b");
  if (file == nullptr) throw input_error("{}: cannot create it: {}", path, std::strerror(errno));
  return file;
}

template <class Id>
void pack(std::span<const int32_t> ids, std::vector<char>& out) {
  out.resize(ids.size() * sizeof(Id));
  for (size_t i = 0; i < ids.size(); ++i) {
    const Id id = Id(ids[i]);
    std::memcpy(out.data() + i * sizeof id, &id, sizeof id);
  }
}

}  // namespace

TokenWriter::TokenWriter(std::string prefix, int64_t vocabulary, int64_t most_sequence_tokens)
    : prefix_(std::move(prefix)),
      vocabulary_(vocabulary),
      most_sequence_tokens_(most_sequence_tokens),
      type_(smallest_type(vocabulary)),
      tokens_file_(create(prefix_ + ".bin.tmp"), std::fclose),
      index_file_(create(prefix_ + ".idx.tmp"), std::fclose) {
  const char header[kIndexHeader_bytes] = {};  // written again when the counts are known
  write(index_file_, header, sizeof header);
}

TokenWriter::~TokenWriter() {
  if (finished_) return;
  tokens_file_.reset();
  index_file_.reset();
  std::remove((prefix_ + ".bin.tmp").c_str());
  std::remove((prefix_ + ".idx.tmp").c_str());
}

void TokenWriter::write(const File& file, const void* bytes, size_t count_bytes) const {
  if (std::fwrite(bytes, 1, count_bytes, file.get()) != count_bytes)
    throw input_error("{}: cannot write: {} (after {} tokens)", prefix_, std::strerror(errno), tokens_);
}

void TokenWriter::append(std::span<const int32_t> ids) {
  for (int32_t id : ids)
    if (uint64_t(int64_t(id)) >= uint64_t(vocabulary_))
      throw input_error("{}: id {} is outside the vocabulary of {} ids", prefix_, id, vocabulary_);
  while (!ids.empty()) {
    if (sequence_tokens_ == most_sequence_tokens_) {
      end_sequence();
      splits_ = true;
    }
    const auto part = ids.first(std::min(ids.size(), size_t(most_sequence_tokens_ - sequence_tokens_)));
    if (type_ == TokenType::uint8) pack<uint8_t>(part, packed_);
    if (type_ == TokenType::uint16) pack<uint16_t>(part, packed_);
    if (type_ == TokenType::int32) pack<int32_t>(part, packed_);
    write(tokens_file_, packed_.data(), packed_.size());
    sequence_tokens_ += int64_t(part.size());
    tokens_ += int64_t(part.size());
    in_document_ = true;
    ids = ids.subspan(part.size());
  }
}

void TokenWriter::end_sequence() {
  const auto count = int32_t(sequence_tokens_);
  write(index_file_, &count, sizeof count);
  if (splits_) continuing_.push_back(sequences_);
  splits_ = false;
  ++sequences_;
  sequence_tokens_ = 0;
}

void TokenWriter::end_document() {
  end_sequence();
  ++documents_;
  in_document_ = false;
}

// Pointers follow from the sizes, which are read back from the file: they may be too many for the memory.
void TokenWriter::write_tail() {
  if (std::fflush(index_file_.get()) != 0) throw input_error("{}.idx: cannot write: {}", prefix_, std::strerror(errno));
  File sizes(std::fopen((prefix_ + ".idx.tmp").c_str(), "rb"), std::fclose);
  if (!sizes || std::fseek(sizes.get(), kIndexHeader_bytes, SEEK_SET) != 0)
    throw input_error("{}.idx: cannot read it back: {}", prefix_, std::strerror(errno));
  int64_t pointer = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    int32_t count = 0;
    if (std::fread(&count, sizeof count, 1, sizes.get()) != 1)
      throw input_error("{}.idx: cannot read it back: {}", prefix_, std::strerror(errno));
    write(index_file_, &pointer, sizeof pointer);
    pointer += int64_t(count) * size_bytes_of(type_);
  }
  auto continuing = continuing_.begin();
  for (int64_t i = 0; i <= sequences_; ++i) {
    if (continuing != continuing_.end() && *continuing == i)
      ++continuing;
    else
      write(index_file_, &i, sizeof i);
  }
  char header[kIndexHeader_bytes] = {};
  const uint64_t version = 1, sequences = uint64_t(sequences_), boundaries = uint64_t(documents_) + 1;
  std::memcpy(header, kIndexMagic, 9);
  std::memcpy(header + 9, &version, 8);
  header[17] = char(index_code(type_));
  std::memcpy(header + 18, &sequences, 8);
  std::memcpy(header + 26, &boundaries, 8);
  if (std::fseek(index_file_.get(), 0, SEEK_SET) != 0)
    throw input_error("{}.idx: cannot seek: {}", prefix_, std::strerror(errno));
  write(index_file_, header, sizeof header);
}

void TokenWriter::close(File& file) const {
  const bool kept = std::fflush(file.get()) == 0 && ::fsync(::fileno(file.get())) == 0;
  const int reason = errno;
  if (std::fclose(file.release()) != 0 || !kept)
    throw input_error("{}: cannot write: {} (after {} tokens)", prefix_, std::strerror(kept ? errno : reason), tokens_);
}

void TokenWriter::finish() {
  require(!in_document_ && !finished_, "{}: finish() before the last document has ended, or twice", prefix_);
  write_tail();
  close(tokens_file_);
  close(index_file_);
  // An older index or older notes must never lie beside the new tokens.
  std::error_code ignored, failure;
  std::filesystem::remove(prefix_ + ".idx", ignored);
  std::filesystem::remove(prefix_ + ".json", ignored);
  for (const char* ending : {".bin", ".idx"}) {
    std::filesystem::rename(prefix_ + ending + ".tmp", prefix_ + ending, failure);
    if (failure) throw input_error("{}{}: cannot rename it into place: {}", prefix_, ending, failure.message());
  }
  finished_ = true;
}

}  // namespace keel::data
