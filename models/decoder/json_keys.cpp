#include "models/decoder/json_keys.h"

namespace keel::models {

const JsonKeys::Json* JsonKeys::find(const std::string& key, bool optional) {
  asked_.insert(key);
  const auto found = object_.find(key);
  const bool there = found != object_.end() && !found->is_null();
  if (!there && !optional) throw error(key, "is missing");
  return there ? &*found : nullptr;
}

const JsonKeys::Json* JsonKeys::find_number(const std::string& key, bool optional) {
  if (is_null(key)) throw error(key, "is null: give a number, or leave the key out");
  return find(key, optional);
}

bool JsonKeys::is_null(const std::string& key) {
  asked_.insert(key);
  return object_.contains(key) && object_[key].is_null();
}

bool JsonKeys::has(const std::string& key) {
  return find(key, true) != nullptr;
}

int64_t JsonKeys::integer(const std::string& key, std::optional<int64_t> otherwise) {
  const Json* value = find_number(key, otherwise.has_value());
  if (!value) return *otherwise;
  const bool fits =
      value->is_number_integer() && (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t(INT64_MAX));
  if (!fits) throw error(key, "must be a whole number, not {}", io::excerpt(*value));
  return value->get<int64_t>();
}

int64_t JsonKeys::size(const std::string& key, int64_t most, std::optional<int64_t> otherwise) {
  const int64_t value = integer(key, otherwise);
  if (value < 1 || value > most) throw error(key, "must be from 1 to {}, is {}", most, value);
  return value;
}

double JsonKeys::real(const std::string& key, std::optional<double> otherwise) {
  const Json* value = find_number(key, otherwise.has_value());
  if (!value) return *otherwise;
  if (!value->is_number()) throw error(key, "must be a number, not {}", io::excerpt(*value));
  return value->get<double>();
}

bool JsonKeys::flag(const std::string& key, std::optional<bool> otherwise) {
  const Json* value = find(key, otherwise.has_value());
  if (!value) return is_null(key) ? false : *otherwise;
  if (!value->is_boolean()) throw error(key, "must be true or false, not {}", io::excerpt(*value));
  return value->get<bool>();
}

std::string JsonKeys::text(const std::string& key, std::optional<std::string> otherwise) {
  const Json* value = find(key, otherwise.has_value());
  if (!value) return *otherwise;
  if (!value->is_string()) throw error(key, "must be a text, not {}", io::excerpt(*value));
  return value->get<std::string>();
}

std::vector<std::string> JsonKeys::texts(const std::string& key) {
  const Json* value = find(key, false);
  if (!value->is_array()) throw error(key, "must be a list, not {}", io::excerpt(*value));
  std::vector<std::string> texts;
  for (const Json& item : *value) {
    if (!item.is_string()) throw error(key, "must be a list of texts; {} is none", io::excerpt(item));
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::vector<int64_t> JsonKeys::ids(const std::string& key, int64_t most) {
  const Json* value = find(key, true);
  std::vector<int64_t> ids;
  if (!value) return ids;
  for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t(most))
      throw error(key, "must be ids from 0 to {}; {} is none", most, io::excerpt(id));
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

JsonKeys JsonKeys::section(const std::string& key) {
  const Json* value = find(key, false);
  if (!value->is_object()) throw error(key, "must be an object, not {}", io::excerpt(*value));
  return JsonKeys(*value, where_ + key + ".");
}

std::vector<std::string> JsonKeys::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items())
    if (!asked_.contains(key)) keys.push_back(key);
  return keys;
}

}  // namespace keel::models
