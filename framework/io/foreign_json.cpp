#include "framework/io/foreign_json.h"

#include <set>
#include <vector>

#include "framework/base/error.h"
#include "framework/base/utf8.h"
#include "framework/io/files.h"

namespace keel::io {

ForeignJson parse_foreign_json(std::string_view text, const std::string& what) {
  using Event = ForeignJson::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto on_event = [&](int depth, Event event, ForeignJson& value) {
    if ((event == Event::object_start || event == Event::array_start) && depth >= kDeepestJson)
      throw input_error("{} nests more than {} deep", what, kDeepestJson);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      throw input_error("{} has the key {} twice", what, excerpt(value));
    return true;
  };
  ForeignJson json = ForeignJson::parse(text, on_event, false);
  if (const int64_t invalid = json.is_discarded() ? count_invalid_bytes(text) : 0; invalid > 0)
    throw input_error("{} is not JSON: {} of its bytes are not UTF-8, from byte {} on", what, invalid,
                      valid_prefix_bytes(text));
  if (json.is_discarded()) throw input_error("{} is not JSON", what);
  if (!json.is_object()) throw input_error("{} is not a JSON object", what);
  return json;
}

ForeignJson read_foreign_json(const std::string& path, uint64_t largest_bytes) {
  return parse_foreign_json(read_file(path, largest_bytes), path);
}

std::string excerpt(const ForeignJson& value) {
  constexpr size_t kMost = 60;
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kMost) text.replace(kMost - 3, text.npos, "...");
  return text;
}

}  // namespace keel::io
