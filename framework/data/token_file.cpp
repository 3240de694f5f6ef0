#include "framework/data/token_file.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>

#include "framework/data/token_format.h"

namespace keel::data {
namespace {

namespace fs = std::filesystem;

std::string without(const std::string& path, std::string_view ending) {
  return path.ends_with(ending) ? path.substr(0, path.size() - ending.size()) : path;
}

// The file of ids that `path` names; a pair's prefix comes before a file of that very name.
std::string find_tokens(const std::string& path) {
  const std::string prefix = without(path, ".idx");
  if (fs::is_regular_file(prefix + ".bin")) return prefix + ".bin";
  if (prefix != path) throw input_error("{}: its tokens, {}.bin, are missing", path, prefix);
  if (fs::is_regular_file(path)) return path;
  if (fs::is_regular_file(path + ".npy")) return path + ".npy";
  throw input_error(
      "{}: no token file of this name ({}.bin with {}.idx, a .bin or a .npy); `keel tokenize` makes one "
      "from text",
      path, path, path);
}

// f(pointer to the ids in their own type), so that loops over ids exist once.
template <class Function>
auto with_type(TokenType type, const char* ids, Function f) {
  switch (type) {
    case TokenType::uint8:
      return f(uint8_t(), ids);
    case TokenType::uint16:
      return f(uint16_t(), ids);
    case TokenType::int32:
      return f(int32_t(), ids);
    case TokenType::uint32:
      return f(uint32_t(), ids);
    case TokenType::int64:
      break;
  }
  return f(int64_t(), ids);
}

template <class Id>
int64_t load(const char* ids, int64_t i) {
  Id id;
  std::memcpy(&id, ids + i * int64_t(sizeof id), sizeof id);  // NumPy headers may leave ids unaligned
  return int64_t(id);
}

// The first i in [begin, end) whose id is outside [0, limit), or end.
int64_t first_outside(TokenType type, const char* ids, int64_t begin, int64_t end, int64_t limit) {
  return with_type(type, ids, [=](auto id, const char* from) {
    using Id = decltype(id);
    bool outside = false;
    for (int64_t i = begin; i < end; ++i) outside |= uint64_t(load<Id>(from, i)) >= uint64_t(limit);
    if (!outside) return end;
    int64_t i = begin;
    while (uint64_t(load<Id>(from, i)) < uint64_t(limit)) ++i;
    return i;
  });
}

// Of these sorted files: the held-out part of one that is among them (`keel tokenize --valid`).
bool is_held_out_part(const std::string& file, const std::vector<std::string>& files) {
  for (const std::string_view ending : {".bin", ".npy"}) {
    const std::string whole = without(file, "-valid" + std::string(ending));
    if (whole != file) return std::ranges::binary_search(files, whole + std::string(ending));
  }
  return false;
}

uint64_t hash_bytes(uint64_t hash, const char* bytes, int64_t count) {  // FNV-1a
  for (int64_t i = 0; i < count; ++i) hash = (hash ^ uint8_t(bytes[i])) * 0x100000001b3u;
  return hash;
}

}  // namespace

int size_bytes_of(TokenType type) {
  switch (type) {
    case TokenType::uint8:
      return 1;
    case TokenType::uint16:
      return 2;
    case TokenType::int64:
      return 8;
    default:
      return 4;
  }
}

std::string_view name_of(TokenType type) {
  constexpr std::string_view kNames[] = {"uint8", "uint16", "int32", "uint32", "int64"};
  return kNames[static_cast<int>(type)];
}

TokenType smallest_type(int64_t vocabulary) {
  if (vocabulary < 1 || vocabulary > int64_t(1) << 31)
    throw input_error("a vocabulary of {} ids cannot be stored; 1 to 2^31 can", vocabulary);
  return vocabulary <= 256 ? TokenType::uint8 : vocabulary <= 65536 ? TokenType::uint16 : TokenType::int32;
}

std::optional<TokenNotes> notes_of(const std::string& path) {
  const std::string prefix = without(without(path, ".idx"), ".bin");
  const bool bare = fs::exists(prefix + ".bin") || fs::exists(prefix + ".npy");
  return bare && !fs::exists(prefix + ".idx") ? std::nullopt : read_notes(prefix);
}

std::vector<std::string> matching_files(const std::string& path) {
  if (path.find_first_of("*?[") == path.npos || fs::exists(path) || fs::exists(path + ".bin")) return {path};
  glob_t found{};
  const std::unique_ptr<glob_t, void (*)(glob_t*)> owner(&found, ::globfree);
  std::vector<std::string> files;
  if (::glob(path.c_str(), 0, nullptr, &found) == 0)
    for (const char* name : std::span(found.gl_pathv, found.gl_pathc))
      if (std::string_view(name).ends_with(".bin") || std::string_view(name).ends_with(".npy")) files.push_back(name);
  std::sort(files.begin(), files.end());  // in any locale alike
  std::vector<std::string> kept;
  std::ranges::copy_if(files, std::back_inserter(kept),
                       [&](const std::string& file) { return !is_held_out_part(file, files); });
  return kept;
}

TokenFile::TokenFile(const std::string& path, std::optional<TokenType> type) : tokens_file_(find_tokens(path)) {
  const std::string prefix = without(without(tokens_file_.path(), ".bin"), ".npy");
  const bool paired = tokens_file_.path().ends_with(".bin") && fs::exists(prefix + ".idx");
  TokenLayout layout;
  if (paired && type) throw input_error("{}.idx: says the type of the tokens; leave the key out", prefix);
  if (paired) {
    index_file_ = MappedFile(prefix + ".idx");
    IndexLayout index = read_index(index_file_, tokens_file_);
    layout = index.tokens;
    sequences_ = index.sequences;
    documents_ = index.documents;
    pointers_byte_ = index.pointers_byte;
    boundaries_byte_ = index.boundaries_byte;
  } else if (type) {
    layout = read_bare(tokens_file_, *type);
  } else {
    const bool numpy = tokens_file_.path().ends_with(".npy") || is_numpy(tokens_file_);
    layout = numpy ? read_numpy(tokens_file_) : read_llmc(tokens_file_);
  }
  type_ = layout.type;
  first_byte_ = layout.first_byte;
  tokens_ = layout.tokens;
  if (paired) notes_ = read_notes(prefix);
  if (notes_ && (notes_->tokens != tokens_ || notes_->documents != documents_))
    throw input_error(
        "{}.json: it speaks of {} tokens in {} documents, the files hold {} in {}; delete it or run "
        "`keel tokenize` again",
        prefix, notes_->tokens, notes_->documents, tokens_, documents_);
}

int64_t TokenFile::document_start(int64_t document) const {
  require(document >= 0 && document <= documents_, "{}: document {} is outside 0 to {}", path(), document, documents_);
  if (!knows_documents()) return document == 0 ? 0 : tokens_;
  const auto sequence = index_file_.at<int64_t>(boundaries_byte_ + 8 * document);
  return sequence == sequences_ ? tokens_
                                : index_file_.at<int64_t>(pointers_byte_ + 8 * sequence) / size_bytes_of(type_);
}

int64_t TokenFile::document_of(int64_t token) const {
  require(token >= 0 && token < tokens_, "{}: token {} is outside 0 to {}", path(), token, tokens_ - 1);
  int64_t low = 0, high = documents_;  // document_start(low) <= token < document_start(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_start(middle) <= token ? low : high) = middle;
  }
  return low;
}

int64_t TokenFile::id_at(int64_t offset) const {
  return with_type(type_, tokens_file_.data() + first_byte_,
                   [=](auto id, const char* from) { return load<decltype(id)>(from, offset); });
}

void TokenFile::read(int64_t offset, std::span<int32_t> out) const {
  const auto count = int64_t(out.size());
  require(offset >= 0 && count <= tokens_ - offset, "{}: {} tokens from {} on are outside 0 to {}", path(), count,
          offset, tokens_ - 1);
  const char* ids = tokens_file_.data() + first_byte_;
  with_type(type_, ids, [&](auto id, const char* from) {
    for (int64_t i = 0; i < count; ++i) out[size_t(i)] = int32_t(load<decltype(id)>(from, offset + i));
  });
  if (type_ != TokenType::uint32 && type_ != TokenType::int64) return;
  const int64_t bad = first_outside(type_, ids, offset, offset + count, int64_t(1) << 31);
  if (bad < offset + count) throw id_error(bad, int64_t(1) << 31);
}

void TokenFile::check_vocabulary(int64_t vocabulary) const {
  if (notes_ && notes_->vocabulary > vocabulary)
    throw input_error("{}: made with a vocabulary of {} ({}), but the model's is {}", path(), notes_->vocabulary,
                      notes_->tokenizer, vocabulary);
}

void TokenFile::verify_ids(int64_t vocabulary, int part, int parts) const {
  check_vocabulary(vocabulary);
  constexpr int64_t kBlockTokens = 1 << 16;
  const char* ids = tokens_file_.data() + first_byte_;
  const int64_t blocks = (tokens_ + kBlockTokens - 1) / kBlockTokens;
  int64_t bad = tokens_;
#pragma omp parallel for schedule(static) reduction(min : bad)
  for (int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
    const int64_t begin = block * kBlockTokens, end = std::min(begin + kBlockTokens, tokens_);
    const int64_t found = first_outside(type_, ids, begin, end, vocabulary);
    if (found < end) bad = std::min(bad, found);
  }
  if (bad < tokens_) throw id_error(bad, vocabulary);
}

Error TokenFile::id_error(int64_t offset, int64_t vocabulary) const {
  const int64_t document = document_of(offset);
  return input_error("{}: id {} at token {} (document {}, its token {}) is outside the vocabulary of {} ids", path(),
                     id_at(offset), offset, document, offset - document_start(document), vocabulary);
}

uint64_t TokenFile::content_hash() const {
  constexpr int64_t kBlock_bytes = 4096, kBlocks = 64;
  const int64_t bytes = tokens_ * size_bytes_of(type_), last = std::max<int64_t>(0, bytes - kBlock_bytes);
  const char* ids = tokens_file_.data() + first_byte_;
  uint64_t hash = 0xcbf29ce484222325u ^ uint64_t(type_);
  hash = hash_bytes(hash, reinterpret_cast<const char*>(&tokens_), sizeof tokens_);
  for (int64_t i = 0; i < kBlocks; ++i)  // evenly from the first block to the last; short files are hashed whole
    hash = hash_bytes(hash, ids + last / (kBlocks - 1) * i, std::min(kBlock_bytes, bytes));
  const int64_t tail = std::min(kBlock_bytes, bytes);
  return hash_bytes(hash, ids + bytes - tail, tail);
}

}  // namespace keel::data
