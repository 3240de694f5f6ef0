// JSON lines: one object per line, appended, for metrics.jsonl and events.jsonl. JSON has no NaN and no infinity: they
// are written as the strings "nan", "inf", "-inf", and these strings are read back as numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "framework/io/files.h"

namespace keel::io {

using Json = nlohmann::ordered_json;  // keys stay in the order they were set in

// With the strings "nan", "inf" and "-inf" in the place of such numbers, and back, at any depth.
Json storable(Json value);
Json restored(Json value);

// The object as one line, its newline included.
std::string json_line(const Json& object);

class JsonLinesWriter {
 public:
  // Appends to what is there; a broken last line (of a killed writer) is cut off, with a warning.
  explicit JsonLinesWriter(const std::string& path);
  // One line, one write to the kernel: it survives the end of this process, however that comes. After an error (full
  // disk) the file holds whole lines.
  void write(const Json& object);

 private:
  AppendFile file_;
};

// An object as it was written, NaN and infinities included; nothing where the line is broken.
std::optional<Json> parse_json_line(const std::string& line);

// What the object says of `key`; not a number where it says none.
double number(const Json& object, const char* key);

// Every line in turn; a broken last one is left out. Another broken line, or an absent file, is an input error.
void for_each_json_line(const std::string& path, const std::function<void(Json)>& visit);
std::vector<Json> read_json_lines(const std::string& path);

// The last line that has a member `key`, among those that begin in the last `most_bytes` of the file; nothing where
// none has, or the file is absent.
std::optional<Json> last_line_with(const std::string& path, const std::string& key, uint64_t most_bytes);

// For a resume after `step`: drops the lines whose "step" is larger, and broken ones; lines without a step, and those
// with a member "lasting", stay. The file is replaced as a whole, so open the writer afterwards. Returns how many lines
// went; an absent file has none.
uint64_t truncate_after(const std::string& path, int64_t step);

// The same for a file whose lines ascend by step, such as metrics.jsonl: only its end is read, so that other ranks do
// not wait long for the one that does, and the file is shortened in place.
uint64_t cut_after(const std::string& path, int64_t step);

}  // namespace keel::io
