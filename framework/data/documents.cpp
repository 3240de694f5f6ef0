#include "framework/data/documents.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "framework/base/error.h"
#include "framework/base/utf8.h"

namespace keel::data {
namespace {

constexpr size_t kRead_bytes = 1 << 20;

int leave_open(std::FILE*) {
  return 0;
}  // standard input is not ours to close

}  // namespace

size_t DocumentReader::Scanner::find_end(std::string_view text) {
  if (rule == DocumentRule::file) return text.npos;
  if (rule == DocumentRule::line) {
    const size_t newline = text.find('\n');
    return newline == text.npos ? newline : newline + 1;
  }
  size_t line_start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      after_blank = after_blank || (line_is_blank && has_text);
      line_is_blank = true;
      line_start = i + 1;
    } else if (c != ' ' && c != '\t' && c != '\r') {
      if (after_blank) return line_start;
      line_is_blank = false;
      has_text = true;
    }
  }
  return text.npos;
}

DocumentReader::DocumentReader(std::vector<std::string> paths, DocumentRule rule, size_t piece_bytes)
    : paths_(std::move(paths)), piece_bytes_(piece_bytes), scanner_{rule}, file_(nullptr, std::fclose) {
  require(piece_bytes >= 4, "pieces of {} bytes", piece_bytes);
  bool known = true;
  for (const std::string& path : paths_) {
    std::error_code failure;
    const auto status = path == "-" ? std::filesystem::file_status() : std::filesystem::status(path, failure);
    if (failure || std::filesystem::is_directory(status))
      throw input_error("{}: cannot read it: {}", path, failure ? failure.message() : "it is a folder; name its files");
    const bool regular = std::filesystem::is_regular_file(status);  // else a pipe
    if (regular) total_bytes_ += int64_t(std::filesystem::file_size(path));
    known = known && regular;
  }
  if (!known) total_bytes_ = 0;
}

void DocumentReader::open_next() {
  const std::string& path = paths_[next_path_++];
  file_ =
      path == "-" ? decltype(file_)(stdin, leave_open) : decltype(file_)(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file_) throw input_error("{}: cannot open it: {}", path, std::strerror(errno));
  file_ended_ = false;
  scanner_ = {scanner_.rule};
}

void DocumentReader::refill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  while (!file_ended_ && buffer_.size() < piece_bytes_ + kRead_bytes) {
    const size_t before = buffer_.size();
    buffer_.resize(before + kRead_bytes);
    const size_t count = std::fread(buffer_.data() + before, 1, kRead_bytes, file_.get());
    buffer_.resize(before + count);
    bytes_ += int64_t(count);
    if (std::ferror(file_.get()) != 0)
      throw input_error("{}: cannot read it: {}", paths_[next_path_ - 1], std::strerror(errno));
    file_ended_ = std::feof(file_.get()) != 0;
  }
}

bool DocumentReader::next(TextPiece& piece) {
  while (begin_ == buffer_.size() && file_ended_ && !in_document_) {
    if (next_path_ == paths_.size()) return false;
    open_next();
    refill();
  }
  if (buffer_.size() - begin_ < piece_bytes_ + 4 && !file_ended_) refill();
  std::string_view rest = std::string_view(buffer_).substr(begin_);
  size_t cut = cut_between_characters(rest, piece_bytes_);
  Scanner scanner = scanner_;
  const size_t end = scanner.find_end(rest.substr(0, cut));
  piece.ends_document = end != rest.npos || (cut == rest.size() && file_ended_);
  if (end != rest.npos) {
    cut = end;
  } else if (!piece.ends_document) {
    const size_t line = rest.substr(0, cut).rfind('\n');
    if (line != rest.npos) cut = line + 1;
  }
  piece.text = rest.substr(0, cut);
  begin_ += cut;
  in_document_ = !piece.ends_document;
  if (piece.ends_document)
    scanner_ = {scanner_.rule};
  else
    scanner_.find_end(piece.text);
  return true;
}

}  // namespace keel::data
