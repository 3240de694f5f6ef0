#include "models/decoder/json_keys.h"

namespace keel::models {

const JsonKeys::Json* JsonKeys::find(const std::string& key, bool optional) {
  asked_.insert(key);
  const auto found = object_.find(key);
  const bool there = found != object_.end() && !found->is_null();
  if (!there && !optional) throw error(key, "is missing");
  return there ? &*found : nullptr;
}

bool JsonKeys::has(const std::string& key) {
  return find(key, true) != nullptr;
}

int64_t JsonKeys::integer(const std::string& key, std::optional<int64_t> otherwise) {
  const Json* value = find(key, otherwise.has_value());
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
  const Json* value = find(key, otherwise.has_value());
  if (!value) return *otherwise;
  if (!value->is_number()) throw error(key, "must be a number, not {}", io::excerpt(*value));
  return value->get<double>();
}

bool JsonKeys::flag(const std::string& key, std::optional<bool> otherwise) {
  const Json* value = find(key, otherwise.has_value());
  if (!value) return *otherwise;
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
