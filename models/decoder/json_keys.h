// A JSON object read key by key, with errors that name the file and the key. For formats that are not Keel's own: keys
// that nothing asks for are no error, and can be listed.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "framework/base/error.h"
#include "framework/io/foreign_json.h"

namespace keel::models {

class JsonKeys {
 public:
  using Json = io::ForeignJson;

  // `where` stands in front of keys in messages: "DIR/config.json: ", "DIR/config.json: rope_scaling.".
  JsonKeys(Json object, std::string where) : object_(std::move(object)), where_(std::move(where)) {}

  // There, and not null. Counts as asked for.
  bool has(const std::string& key);
  // There, and null: none, where a missing key would mean a default. Counts as asked for.
  bool is_null(const std::string& key);
  int64_t integer(const std::string& key, std::optional<int64_t> otherwise = {});
  // From 1 to `most`.
  int64_t size(const std::string& key, int64_t most, std::optional<int64_t> otherwise = {});
  double real(const std::string& key, std::optional<double> otherwise = {});
  // Null is false.
  bool flag(const std::string& key, std::optional<bool> otherwise = {});
  // Null is a missing one.
  std::string text(const std::string& key, std::optional<std::string> otherwise = {});
  std::vector<std::string> texts(const std::string& key);
  // A whole number from 0 to `most`, or a list of them; none where it is missing or null.
  std::vector<int64_t> ids(const std::string& key, int64_t most);
  JsonKeys section(const std::string& key);
  // Of no consequence here: never listed as unread.
  void ignore(std::initializer_list<const char*> keys) { asked_.insert(keys.begin(), keys.end()); }

  template <class... Args>
  Error error(const std::string& key, fmt::format_string<Args...> format, Args&&... args) const {
    return input_error("{}{}: {}", where_, key, fmt::format(format, std::forward<Args>(args)...));
  }
  std::vector<std::string> unread() const;

 private:
  // Null where the key is not there, or null, and `optional`.
  const Json* find(const std::string& key, bool optional);
  // The same for numbers, which a key that is null has not.
  const Json* find_number(const std::string& key, bool optional);

  Json object_;
  std::string where_;
  std::set<std::string> asked_;
};

}  // namespace keel::models
