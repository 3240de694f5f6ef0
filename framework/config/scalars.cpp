// Single values: strict, independent of the locale, with advice where a form is refused.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "framework/base/text.h"
#include "framework/config/fields.h"

namespace keel::config {
namespace {

std::string shown(const Node& node) {
  switch (node.kind()) {
    case Node::Kind::text:
      return in_quotes(node.text());
    case Node::Kind::list:
      return "a list";
    case Node::Kind::map:
      return "a section";
    default:
      return "null";
  }
}

const std::string& text_of(const Node& node, const std::string& needed, const Context& context) {
  if (node.kind() != Node::Kind::text) refuse(node, needed, context);
  return node.text();
}

void check_range(const Node& node, const Field& field, double value) {
  if (field.range.contains(value)) return;
  throw node.error("must be {}, is {}", field.range.text(), node.text());
}

std::string without(std::string text, std::string_view characters) {
  std::erase_if(text, [&](char c) { return characters.find(c) != std::string_view::npos; });
  return text;
}

bool all_digits(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// "10k" -> 10000, "1e3" -> 1000; false where no whole number was meant.
bool meant_whole(std::string text, double& value) {
  double unit = 1;
  constexpr std::string_view kLetters = "kMGT";
  size_t letter = text.empty() ? std::string_view::npos : kLetters.find(text.back() == 'K' ? 'k' : text.back());
  if (letter != std::string_view::npos) {
    text.pop_back();
    unit = std::pow(1000.0, double(letter + 1));
  }
  if (!parse_real(text, value)) return false;
  value *= unit;
  return value == std::floor(value) && std::abs(value) < 9e15;
}

// What to write instead, for the ways in which people write whole numbers elsewhere.
std::string integer_advice(const std::string& text) {
  int64_t whole = 0;
  double value = 0;
  std::string digits = without(text, "_,' ");
  std::string significant = digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits != text && parse_integer(digits, whole)) return fmt::format("write {}", whole);
  if (all_digits(digits) && parse_integer(significant, whole))
    return fmt::format("write {}, without zeros in front", whole);
  if (all_digits(without(digits, "-+"))) return "too large for 64 bits";
  if (meant_whole(text, value)) return fmt::format("write {:.0f}", value);
  return "a whole number in decimal digits";
}

// "010", which other readers of YAML take as 8.
bool octal_elsewhere(const std::string& text) {
  return text.size() > 1 && text[0] == '0' && all_digits(text);
}

std::string real_advice(const std::string& text) {
  double value = 0;
  if (octal_elsewhere(text))
    return fmt::format("write {}, without zeros in front",
                       text.substr(std::min(text.find_first_not_of('0'), text.size() - 1)));
  std::string point = text;
  std::replace(point.begin(), point.end(), ',', '.');
  if (point != text && parse_real(point, value)) return fmt::format("write {}, with a decimal point", point);
  if (meant_whole(text, value)) return fmt::format("write {:.0f}", value);
  return "a finite decimal number such as 1e-4";
}

std::string bool_advice(const std::string& text) {
  std::string lower = text;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  for (const char* word : {"yes", "on", "y", "1", "true", "enabled"})
    if (lower == word) return "write true";
  for (const char* word : {"no", "off", "n", "0", "false", "disabled"})
    if (lower == word) return "write false";
  return "";
}

struct DurationUnit {
  char letter;
  int64_t seconds;
};
constexpr std::array kDurationUnits = {DurationUnit{'d', 86400}, DurationUnit{'h', 3600}, DurationUnit{'m', 60},
                                       DurationUnit{'s', 1}};

// "3h50m": whole numbers, each with its unit, the longest unit first.
bool parse_duration(std::string_view text, int64_t& seconds) {
  constexpr int64_t kLongest_seconds = int64_t(100) * 366 * 86400;
  int64_t total = 0;
  if (text.empty()) return false;
  for (const DurationUnit& unit : kDurationUnits) {
    size_t length = std::min(text.find_first_not_of("0123456789"), text.size());
    int64_t count = 0;
    if (length == text.size() || text[length] != unit.letter) continue;
    if (length == 0) return false;
    size_t first = std::min(text.find_first_not_of('0'), length - 1);
    if (!parse_integer(text.substr(first, length - first), count)) return false;
    if (count > kLongest_seconds) return false;
    total += count * unit.seconds;
    text.remove_prefix(length + 1);
  }
  seconds = total;
  return text.empty() && total <= kLongest_seconds;
}

}  // namespace

void refuse(const Node& node, const std::string& needed, const Context& context, const std::string& advice) {
  std::string all = needed, hint = did_you_mean(node.text(), context.alternatives);
  for (const std::string& word : context.alternatives) all = either(all, word);
  if (hint.empty()) hint = advice;
  throw node.error("needs {}, is {}{}", all, shown(node), hint.empty() ? "" : fmt::format(" ({})", hint));
}

bool read_bool(const Node& node, const Context& context) {
  const std::string& text = text_of(node, "true or false", context);
  if (text != "true" && text != "false") refuse(node, "true or false", context, bool_advice(text));
  return text == "true";
}

int64_t read_integer(const Node& node, const Field& field, const Context& context, int64_t low, int64_t high) {
  int64_t value = 0;
  const std::string& text = text_of(node, "an integer", context);
  if (!parse_integer(text, value)) refuse(node, "an integer", context, integer_advice(text));
  check_range(node, field, double(value));
  if (value < low || value > high) throw node.error("must be between {} and {}, is {}", low, high, text);
  return value;
}

double read_real(const Node& node, const Field& field, const Context& context) {
  double value = 0;
  const std::string& text = text_of(node, "a number", context);
  if (!parse_real(text, value) || octal_elsewhere(text)) refuse(node, "a number", context, real_advice(text));
  check_range(node, field, value);
  return value;
}

std::string read_string(const Node& node, const Context& context) {
  const std::string& text = text_of(node, "text", context);
  if (text.find('\0') != std::string::npos) refuse(node, "text", context, "with a zero byte inside");
  return text;
}

std::chrono::seconds read_duration(const Node& node, const Field& field, const Context& context) {
  constexpr const char* kNeeded = "a duration such as 3h50m";
  int64_t seconds = 0;
  const std::string& text = text_of(node, kNeeded, context);
  std::string unit =
      all_digits(text) ? fmt::format("write {0}s, {0}m or {0}h", text) : "units d, h, m, s in this order";
  if (!parse_duration(text, seconds)) refuse(node, kNeeded, context, unit);
  check_range(node, field, double(seconds));
  return std::chrono::seconds(seconds);
}

size_t read_name(const Node& node, const std::vector<std::string>& names, const Context& context) {
  const std::string& text = text_of(node, words(names), context);
  auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) refuse(node, words(names), context, did_you_mean(text, names));
  return size_t(found - names.begin());
}

// The shortest text that reads back to the same double, with a point before an exponent, as YAML 1.1 readers want.
std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

std::string duration_text(std::chrono::seconds value) {
  std::string text;
  int64_t rest = value.count();
  for (const DurationUnit& unit : kDurationUnits) {
    if (rest >= unit.seconds) text += fmt::format("{}{}", rest / unit.seconds, unit.letter);
    rest %= unit.seconds;
  }
  return text.empty() ? "0s" : text;
}

std::string words(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

std::string either(const std::string& type, const std::string& other) {
  size_t last = type.rfind(" or ");
  std::string before = last == std::string::npos ? type : type.substr(0, last) + ", " + type.substr(last + 4);
  return before + " or " + other;
}

bool Range::contains(double value) const {
  return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
}

std::string Range::text() const {
  bool bounded_low = std::isfinite(low), bounded_high = std::isfinite(high);
  if (bounded_low && bounded_high)
    return fmt::format("{} {} x {} {}", low, low_open ? "<" : "<=", high_open ? "<" : "<=", high);
  if (bounded_low) return fmt::format("{} {}", low_open ? ">" : ">=", low);
  if (bounded_high) return fmt::format("{} {}", high_open ? "<" : "<=", high);
  return "";
}

}  // namespace keel::config
