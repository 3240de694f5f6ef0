#include "framework/data/token_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "framework/base/error.h"
#include "framework/data/token_format.h"

namespace keel::data {
namespace {

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
      tokens_file_{io::AtomicFile(prefix_ + ".bin")},
      index_file_{io::AtomicFile(prefix_ + ".idx")} {
  const char header[kIndexHeader_bytes] = {};  // written again when the counts are known
  index_file_.write(header, sizeof header);
}

void TokenWriter::File::write(const void* bytes, size_t count_bytes) {
  constexpr size_t kFlush_bytes = 1 << 20;
  waiting.append(static_cast<const char*>(bytes), count_bytes);
  if (waiting.size() >= kFlush_bytes) flush();
}

void TokenWriter::File::flush() {
  file.write(waiting);
  waiting.clear();
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
    tokens_file_.write(packed_.data(), packed_.size());
    sequence_tokens_ += int64_t(part.size());
    tokens_ += int64_t(part.size());
    in_document_ = true;
    ids = ids.subspan(part.size());
  }
}

void TokenWriter::end_sequence() {
  const auto count = int32_t(sequence_tokens_);
  index_file_.write(&count, sizeof count);
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
  index_file_.flush();
  const io::Descriptor written(index_file_.file.temporary_path(), O_RDONLY, "cannot read it back");
  std::vector<int32_t> counts;
  int64_t pointer = 0;
  for (int64_t first = 0; first < sequences_; first += int64_t(counts.size())) {
    counts.resize(size_t(std::min<int64_t>(sequences_ - first, 1 << 16)));
    written.read_at(uint64_t(kIndexHeader_bytes + 4 * first), reinterpret_cast<char*>(counts.data()),
                    counts.size() * sizeof counts[0]);
    for (const int32_t count : counts) {
      index_file_.write(&pointer, sizeof pointer);
      pointer += int64_t(count) * size_bytes_of(type_);
    }
  }
  auto continuing = continuing_.begin();
  for (int64_t i = 0; i <= sequences_; ++i) {
    if (continuing != continuing_.end() && *continuing == i)
      ++continuing;
    else
      index_file_.write(&i, sizeof i);
  }
  index_file_.flush();
  char header[kIndexHeader_bytes] = {};
  const uint64_t version = 1, sequences = uint64_t(sequences_), boundaries = uint64_t(documents_) + 1;
  std::memcpy(header, kIndexMagic, 9);
  std::memcpy(header + 9, &version, 8);
  header[17] = char(index_code(type_));
  std::memcpy(header + 18, &sequences, 8);
  std::memcpy(header + 26, &boundaries, 8);
  index_file_.file.write_at(0, {header, sizeof header});
}

void TokenWriter::prepare(std::optional<TokenNotes> notes) {
  require(!in_document_ && !prepared_, "{}: prepare() before the last document has ended, or twice", prefix_);
  tokens_file_.flush();
  write_tail();
  tokens_file_.file.sync();
  index_file_.file.sync();
  if (notes) {
    notes->tokens = tokens_;
    notes->documents = documents_;
    notes_file_.emplace(prefix_ + ".json");
    notes_file_->write(notes_text(*notes));
    notes_file_->sync();
  }
  prepared_ = true;
}

void TokenWriter::withdraw_older() const {
  std::error_code absent;
  std::filesystem::remove(prefix_ + ".idx", absent);
}

void TokenWriter::commit() {
  require(prepared_, "{}: commit() before prepare()", prefix_);
  withdraw_older();  // it must never lie beside the new tokens
  std::error_code absent;
  if (notes_file_)  // before the tokens: a kill leaves none that do not say whose they are
    notes_file_->commit();
  else
    std::filesystem::remove(prefix_ + ".json", absent);
  tokens_file_.file.commit();
  index_file_.file.commit();
}

}  // namespace keel::data
