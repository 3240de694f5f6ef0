// The table of keys, from the same description that reads them.
#include <algorithm>

#include "framework/config/fields.h"

namespace keel::config {
namespace {

std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  return text;
}

const char* on_resume_text(OnResume on_resume) {
  constexpr const char* kTexts[] = {"fixed", "changeable", "ignored", "key by key"};
  return kTexts[size_t(on_resume)];
}

std::string default_text(const Fields::Entry& entry) {
  if (entry.field.required) return "required";
  if (!entry.field.default_text.empty()) return entry.field.default_text;
  return fmt::format("`{}`", print_line(entry.value->write()));
}

std::string row(const Fields::Entry& entry, const std::string& path, OnResume rule) {
  const Field& field = entry.field;
  std::string range = field.range.text();
  return fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", path, cell(entry.value->type()), field.unit,
                     cell(default_text(entry)), range, on_resume_text(rule), cell(field.doc));
}

std::string rows(const Fields& fields, const std::string& prefix, OnResume section_rule) {
  std::string text;
  for (const Fields::Entry& entry : fields.entries()) {
    std::string path = prefix.empty() ? entry.name : prefix + "." + entry.name;
    OnResume rule = std::max(section_rule, entry.field.on_resume);
    if (!entry.value->is_section()) text += row(entry, path, rule);
    text += rows(entry.value->inside_documented(), entry.value->is_list() ? path + "[]" : path, rule);
  }
  return text;
}

}  // namespace

std::string documentation_table(const Fields& fields, const std::string& prefix) {
  return "| key | type | unit | default | range | on resume | meaning |\n|---|---|---|---|---|---|---|\n" +
         rows(fields, prefix, OnResume::fixed);
}

std::string with_table(const std::string& document, const std::string& name, const std::string& table) {
  std::string begin = fmt::format("<!-- begin {} -->\n", name), end = fmt::format("<!-- end {} -->", name);
  size_t from = document.find(begin), to = document.find(end);
  if (from == std::string::npos || to == std::string::npos || to < from)
    throw input_error("no place for the table {0}: write <!-- begin {0} --> and <!-- end {0} -->, a line each", name);
  from += begin.size();
  return document.substr(0, from) + table + document.substr(to);
}

}  // namespace keel::config
