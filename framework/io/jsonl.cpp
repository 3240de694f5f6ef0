#include "framework/io/jsonl.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "framework/base/log.h"

namespace keel::io {
namespace {

// The lines of a file, one at a time; `ended` says whether the last one had its newline.
class Lines {
 public:
  explicit Lines(std::string path) : path_(std::move(path)), stream_(path_, std::ios::binary) {
    if (!stream_) throw file_error(path_, "cannot open for reading", errno);
  }
  bool next() {
    const bool more = bool(std::getline(stream_, line_));
    if (stream_.bad()) throw file_error(path_, "cannot read", errno);
    ended_ = !stream_.eof();
    return more;
  }
  const std::string& line() const { return line_; }
  bool ended() const { return ended_; }

 private:
  std::string path_;
  std::ifstream stream_;
  std::string line_;
  bool ended_ = true;
};

// The same from the last one on: a look at the end of a long file reads no more than that.
class LinesFromEnd {
 public:
  explicit LinesFromEnd(const std::string& path)
      : file_(path, O_RDONLY, "cannot open for reading"), text_begin_(file_.size_bytes()), begin_(text_begin_) {}
  bool next() {
    if (begin_ == 0) return false;
    end_ = begin_;
    if (text_.empty()) read_block();
    ended_ = text_.back() == '\n';
    size_t at = std::string::npos;  // of the newline before the line
    while ((at = newline_before(text_.size() - ended_)) == std::string::npos && text_begin_ > 0) read_block();
    const size_t first = at == std::string::npos ? 0 : at + 1;
    line_ = text_.substr(first, text_.size() - ended_ - first);
    text_.resize(first);
    begin_ = text_begin_ + first;
    return true;
  }
  const std::string& line() const { return line_; }
  bool ended() const { return ended_; }
  // Of the line in the file, its newline included.
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }

 private:
  size_t newline_before(size_t at) const { return at == 0 ? std::string::npos : text_.rfind('\n', at - 1); }
  void read_block() {
    constexpr uint64_t kBlock_bytes = uint64_t(1) << 16;
    const uint64_t bytes = std::min(kBlock_bytes, text_begin_);
    std::string block(bytes, '\0');
    file_.read_at(text_begin_ - bytes, block.data(), bytes);
    text_.insert(0, block);
    text_begin_ -= bytes;
  }

  Descriptor file_;
  std::string text_, line_;  // what was read and lies before the line
  uint64_t text_begin_ = 0, begin_ = 0, end_ = 0;
  bool ended_ = true;
};

bool is_after(const Json& object, int64_t step) {
  auto at = object.find("step");
  return !object.contains("lasting") && at != object.end() && at->is_number_integer() && at->get<int64_t>() > step;
}

// Makes the file end with a newline: behind a whole last line, or before a broken one.
void mend_end(const std::string& path) {
  if (!std::filesystem::exists(path)) return;
  LinesFromEnd lines(path);
  if (!lines.next() || lines.ended()) return;
  if (parse_json_line(lines.line())) return AppendFile(path).append("\n");
  log::warning("{}: its last line is broken (the run was killed while writing) and is dropped", path);
  Descriptor(path, O_WRONLY, "cannot open for writing").truncate(lines.begin());
}

}  // namespace

JsonLinesWriter::JsonLinesWriter(const std::string& path) : file_((mend_end(path), path)) {}

Json storable(Json value) {
  if (value.is_structured()) {
    for (Json& member : value) member = storable(std::move(member));
  } else if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    value = std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
  }
  return value;
}

Json restored(Json value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.is_structured()) {
    for (Json& member : value) member = restored(std::move(member));
  } else if (value == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (value == "inf") {
    value = kInfinity;
  } else if (value == "-inf") {
    value = -kInfinity;
  }
  return value;
}

std::string json_line(const Json& object) {
  return storable(object).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<Json> parse_json_line(const std::string& line) {
  Json object = Json::parse(line, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  return restored(std::move(object));
}

double number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

void JsonLinesWriter::write(const Json& object) {
  require(object.is_object(), "{}: a line is a JSON object, not {}", file_.path(), object.type_name());
  file_.append(json_line(object));
}

void for_each_json_line(const std::string& path, const std::function<void(Json)>& visit) {
  Lines lines(path);
  for (uint64_t number = 1; lines.next(); ++number) {
    if (std::optional<Json> object = parse_json_line(lines.line()))
      visit(std::move(*object));
    else if (lines.ended())
      throw input_error("{}:{}: not a JSON object: the file is damaged; remove that line", path, number);
  }
}

std::vector<Json> read_json_lines(const std::string& path) {
  std::vector<Json> objects;
  for_each_json_line(path, [&](Json object) { objects.push_back(std::move(object)); });
  return objects;
}

std::optional<Json> last_line_with(const std::string& path, const std::string& key, uint64_t most_bytes) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  LinesFromEnd lines(path);
  const std::string quoted = '"' + key + '"';  // most lines need no parsing
  std::optional<uint64_t> size_bytes;
  while (lines.next()) {
    if (!size_bytes) size_bytes = lines.end();
    if (*size_bytes - lines.begin() > most_bytes) break;
    if (lines.line().find(quoted) == std::string::npos) continue;
    if (std::optional<Json> object = parse_json_line(lines.line()); object && object->contains(key)) return object;
  }
  return std::nullopt;
}

uint64_t truncate_after(const std::string& path, int64_t step) {
  if (!std::filesystem::exists(path)) return 0;
  uint64_t dropped = 0;
  AtomicFile shorter(path);
  Lines lines(path);
  for (uint64_t number = 1; lines.next(); ++number) {
    const std::optional<Json> object = parse_json_line(lines.line());
    if (!object && lines.ended()) log::warning("{}:{}: not a JSON object: dropped", path, number);
    if (!object || is_after(*object, step))
      ++dropped;
    else
      shorter.write(lines.line() + "\n");
  }
  if (dropped > 0) shorter.commit();
  return dropped;
}

uint64_t cut_after(const std::string& path, int64_t step) {
  if (!std::filesystem::exists(path)) return 0;
  uint64_t dropped = 0, kept_bytes = 0;
  LinesFromEnd lines(path);
  while (lines.next()) {
    const std::optional<Json> object = parse_json_line(lines.line());
    if (!object && lines.ended()) log::warning("{}: at byte {}: not a JSON object: dropped", path, lines.begin());
    if (object && !is_after(*object, step)) {
      kept_bytes = lines.end();
      break;
    }
    ++dropped;
  }
  if (dropped > 0) Descriptor(path, O_WRONLY, "cannot open for writing").truncate(kept_bytes);
  return dropped;
}

}  // namespace keel::io
