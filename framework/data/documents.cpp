#include "framework/data/documents.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "framework/base/error.h"
#include "framework/base/utf8.h"
#include "framework/io/files.h"
#include "framework/io/foreign_json.h"

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

DocumentReader::DocumentReader(std::vector<std::string> paths, DocumentRule rule, size_t piece_bytes,
                               std::string json_key, size_t longest_line_bytes)
    : paths_(std::move(paths)),
      piece_bytes_(piece_bytes),
      scanner_{rule},
      json_key_(std::move(json_key)),
      longest_line_bytes_(longest_line_bytes),
      file_(nullptr, std::fclose) {
  require(piece_bytes >= 4, "pieces of {} bytes", piece_bytes);
  bool known = true;
  for (const std::string& path : paths_) {
    std::error_code failure;
    const auto status = path == "-" ? std::filesystem::file_status() : std::filesystem::status(path, failure);
    if (failure) throw io::file_error(path, "cannot read it", failure.value());
    if (std::filesystem::is_directory(status))
      throw input_error("{}: cannot read it: it is a folder; name its files", path);
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
  if (!file_) throw io::file_error(path, "cannot open it", errno);
  file_ended_ = false;
  scanner_ = {scanner_.rule};
  line_ = 0;
  refill(piece_bytes_);
  check_uncompressed();
}

void DocumentReader::check_uncompressed() const {
  using namespace std::string_view_literals;
  for (const auto& [magic, tool] :
       {std::pair{"\x1f\x8b"sv, "zcat"sv}, {"\x28\xb5\x2f\xfd"sv, "zstdcat"sv}, {"\xfd\x37zXZ\0"sv, "xzcat"sv}})
    if (std::string_view(buffer_).substr(begin_).starts_with(magic))
      throw input_error("{}: compressed; read what is in it: {} {} | keel tokenize -", paths_[next_path_ - 1], tool,
                        paths_[next_path_ - 1] == "-" ? "FILE" : paths_[next_path_ - 1]);
}

// Until so many bytes are there, or the file has ended.
void DocumentReader::refill(size_t bytes) {
  buffer_.erase(0, begin_);
  begin_ = 0;
  while (!file_ended_ && buffer_.size() < bytes + kRead_bytes) {
    const size_t before = buffer_.size();
    buffer_.resize(before + kRead_bytes);
    const size_t count = std::fread(buffer_.data() + before, 1, kRead_bytes, file_.get());
    buffer_.resize(before + count);
    bytes_ += int64_t(count);
    if (std::ferror(file_.get()) != 0)
      throw in_mid_run(io::file_error(paths_[next_path_ - 1], "cannot read it", errno));
    file_ended_ = std::feof(file_.get()) != 0;
  }
}

// Of a line of JSON. Errors: one that is longer than any: a file of another kind, which memory need not hold.
size_t DocumentReader::end_of_line() {
  size_t end = buffer_.find('\n', begin_);
  while (end == buffer_.npos && !file_ended_ && buffer_.size() - begin_ <= longest_line_bytes_) {
    const size_t seen = buffer_.size() - begin_;
    refill(std::min(2 * seen, longest_line_bytes_));  // a line may be long: each byte is looked at a few times only
    end = buffer_.find('\n', seen);
  }
  end = std::min(end, buffer_.size());
  if (end - begin_ <= longest_line_bytes_) return end;
  const size_t text = buffer_.find_first_not_of(" \t\r", begin_);
  const bool array = text != buffer_.npos && buffer_[text] == '[';
  throw input_error(
      "{}:{}: a line of more than {} bytes: {}; in JSON Lines each document is an object on a line of its own",
      paths_[next_path_ - 1], line_, longest_line_bytes_,
      array ? "the file seems to be one JSON array (jq -c '.[]' FILE makes lines of it)"
            : "the file seems to be no JSON Lines");
}

// Whether there was a line of JSON, whose text is then the document.
bool DocumentReader::next_line() {
  while (true) {
    while (begin_ == buffer_.size() && file_ended_) {
      if (next_path_ == paths_.size()) return false;
      open_next();
    }
    ++line_;
    const size_t end = end_of_line();
    const std::string_view line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = std::min(end + 1, buffer_.size());
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string where = fmt::format("{}:{}", paths_[next_path_ - 1], line_);
    const io::ForeignJson object = io::parse_foreign_json(line, where);
    const auto text = object.find(json_key_);
    if (text == object.end() || !text->is_string())
      throw input_error("{}: the object has no text under the key '{}'; --json-key names another", where, json_key_);
    document_ = text->get<std::string>();
    document_begin_ = 0;
    return true;
  }
}

bool DocumentReader::next_of_json(TextPiece& piece) {
  if (!in_document_ && !next_line()) return false;
  const std::string_view rest = std::string_view(document_).substr(document_begin_);
  size_t cut = cut_between_characters(rest, piece_bytes_);
  piece.ends_document = cut == rest.size();
  if (const size_t line = rest.substr(0, cut).rfind('\n'); !piece.ends_document && line != rest.npos) cut = line + 1;
  piece.text = rest.substr(0, cut);
  document_begin_ += cut;
  in_document_ = !piece.ends_document;
  return true;
}

bool DocumentReader::next(TextPiece& piece) {
  if (scanner_.rule == DocumentRule::jsonl) return next_of_json(piece);
  while (begin_ == buffer_.size() && file_ended_ && !in_document_) {
    if (next_path_ == paths_.size()) return false;
    open_next();
  }
  if (buffer_.size() - begin_ < piece_bytes_ + 4 && !file_ended_) refill(piece_bytes_);
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
