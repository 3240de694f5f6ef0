// How each type of field is read, written and named; included by fields.h only.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <variant>

#include "framework/config/fields.h"

namespace keel::config {

// "needs a number or auto, is 'x' (advice)"; `needed` is the type's name.
[[noreturn]] void refuse(const Node& node, const std::string& needed, const Context& context,
                         const std::string& advice = "");

bool read_bool(const Node& node, const Context& context);
// Within `range` and [low, high], what the C++ type holds.
int64_t read_integer(const Node& node, const Field& field, const Context& context, int64_t low, int64_t high);
double read_real(const Node& node, const Field& field, const Context& context);
std::string read_string(const Node& node, const Context& context);
std::chrono::seconds read_duration(const Node& node, const Field& field, const Context& context);
size_t read_name(const Node& node, const std::vector<std::string>& names, const Context& context);
std::string real_text(double value);
std::string duration_text(std::chrono::seconds value);
std::string words(const std::vector<std::string>& words);  // "a, b or c"
// "a or b", "c" -> "a, b or c"
std::string either(const std::string& type, const std::string& other);

// How `Format<T>` sees a type without keys of its own.
struct FormatOfValue {
  static constexpr bool is_section = false;
  static constexpr bool is_list = false;
  template <class T>
  static Fields inside(T&) {
    return {};
  }
  template <class T>
  static Fields inside_documented(T&) {
    return {};
  }
};

template <class T>
struct Format;

// The keys of a default-constructed T, which they keep alive.
template <class T>
Fields fields_of_default() {
  if constexpr (Described<T>) {
    auto owner = std::make_shared<T>();
    Fields fields = fields_of(*owner);
    fields.keep(owner);
    return fields;
  } else {
    return {};
  }
}

inline Context with_alternative(Context context, const std::string& word) {
  context.alternatives.push_back(word);
  return context;
}

template <>
struct Format<bool> : FormatOfValue {
  static std::string type() { return "true or false"; }
  static void read(const Node& node, const Field&, const Context& context, bool& value) {
    value = read_bool(node, context);
  }
  static Node write(bool value) { return Node::make_text(value ? "true" : "false"); }
};

template <std::integral T>
struct Format<T> : FormatOfValue {
  static std::string type() { return "integer"; }
  static void read(const Node& node, const Field& field, const Context& context, T& value) {
    constexpr int64_t high = sizeof(T) < 8 || std::is_signed_v<T> ? int64_t(std::numeric_limits<T>::max()) : INT64_MAX;
    value = T(read_integer(node, field, context, int64_t(std::numeric_limits<T>::min()), high));
  }
  static Node write(T value) { return Node::make_text(fmt::format("{}", value)); }
};

template <>
struct Format<double> : FormatOfValue {
  static std::string type() { return "number"; }
  static void read(const Node& node, const Field& field, const Context& context, double& value) {
    value = read_real(node, field, context);
  }
  static Node write(double value) { return Node::make_text(real_text(value)); }
};

template <>
struct Format<std::string> : FormatOfValue {
  static std::string type() { return "text"; }
  static void read(const Node& node, const Field&, const Context& context, std::string& value) {
    value = read_string(node, context);
  }
  static Node write(const std::string& value) { return Node::make_text(value); }
};

template <>
struct Format<std::chrono::seconds> : FormatOfValue {
  static std::string type() { return "duration such as 3h50m"; }
  static void read(const Node& node, const Field& field, const Context& context, std::chrono::seconds& value) {
    value = read_duration(node, field, context);
  }
  static Node write(std::chrono::seconds value) { return Node::make_text(duration_text(value)); }
};

template <>
struct Format<Node> : FormatOfValue {
  static std::string type() { return "section"; }
  static void read(const Node& node, const Field&, const Context& context, Node& value) {
    if (node.kind() != Node::Kind::map && node.kind() != Node::Kind::null) refuse(node, "a section", context);
    value = node;
  }
  static Node write(const Node& value) { return value.exists() ? value : Node::make_null(); }
};

// Enums count from 0 and have, beside them, `std::vector<std::string> enum_names(E)` with the names in that order.
template <class E>
requires std::is_enum_v<E>
struct Format<E> : FormatOfValue {
  static std::string type() { return words(enum_names(E{})); }
  static void read(const Node& node, const Field&, const Context& context, E& value) {
    value = E(read_name(node, enum_names(E{}), context));
  }
  static Node write(E value) { return Node::make_text(enum_names(E{}).at(size_t(value))); }
};

template <Described T>
struct Format<T> {
  static constexpr bool is_section = true;
  static constexpr bool is_list = false;
  static std::string type() { return "section"; }
  static void read(const Node& node, const Field&, const Context& context, T& value) {
    fields_of(value).read(node, context);
  }
  static Node write(const T& value) { return to_node(value); }
  static Fields inside(T& value) { return fields_of(value); }
  static Fields inside_documented(T& value) { return fields_of(value); }
};

template <class T>
struct Format<std::optional<T>> : FormatOfValue {
  static constexpr bool is_list = Format<T>::is_list;
  static std::string type() { return either(Format<T>::type(), "null"); }
  static void read(const Node& node, const Field& field, const Context& context, std::optional<T>& value) {
    if (node.kind() == Node::Kind::null) return value.reset();
    T read = value.value_or(T{});
    Format<T>::read(node, field, with_alternative(context, "null"), read);
    value = std::move(read);
  }
  static Node write(const std::optional<T>& value) { return value ? Format<T>::write(*value) : Node::make_null(); }
  static Fields inside(std::optional<T>& value) { return value ? Format<T>::inside(*value) : Fields(); }
  static Fields inside_documented(std::optional<T>& value) {
    return value ? Format<T>::inside_documented(*value) : fields_of_default<T>();
  }
};

template <class T>
struct Format<Auto<T>> : FormatOfValue {
  static std::string type() { return either(Format<T>::type(), "auto"); }
  static void read(const Node& node, const Field& field, const Context& context, Auto<T>& value) {
    if (node.text() == "auto") return void(value = {});
    T read{};
    Format<T>::read(node, field, with_alternative(context, "auto"), read);
    value = std::move(read);
  }
  static Node write(const Auto<T>& value) {
    return value.is_auto() ? Node::make_text("auto") : Format<T>::write(value.value());
  }
};

// A name of the enum, else a T.
template <class E, class T>
requires std::is_enum_v<E>
struct Format<std::variant<E, T>> : FormatOfValue {
  static std::string type() { return either(Format<E>::type(), Format<T>::type()); }
  static void read(const Node& node, const Field& field, const Context& context, std::variant<E, T>& value) {
    std::vector<std::string> names = enum_names(E{});
    for (size_t i = 0; i < names.size(); ++i)
      if (node.kind() == Node::Kind::text && node.text() == names[i]) return void(value = E(i));
    T read{};
    Context with_names = context;
    with_names.alternatives.insert(with_names.alternatives.end(), names.begin(), names.end());
    Format<T>::read(node, field, with_names, read);
    value = std::move(read);
  }
  static Node write(const std::variant<E, T>& value) {
    return value.index() == 0 ? Format<E>::write(std::get<0>(value)) : Format<T>::write(std::get<1>(value));
  }
};

// A list; where T has a shorthand, a text stands for a list of one.
template <class T>
struct Format<std::vector<T>> : FormatOfValue {
  static constexpr bool is_list = true;
  static std::string type() {
    bool short_form = fields_of_default<T>().shorthand() != nullptr;
    return short_form ? "text or list of sections" : "list of " + Format<T>::type();
  }
  static void read(const Node& node, const Field& field, const Context& context, std::vector<T>& value) {
    bool single = node.kind() == Node::Kind::text && fields_of_default<T>().shorthand() != nullptr;
    if (!single && node.kind() != Node::Kind::list) refuse(node, type(), context);
    value.assign(single ? 1 : node.size(), T{});
    for (size_t i = 0; i < value.size(); ++i) {
      T item{};
      Format<T>::read(single ? node : node[i], field, context, item);
      value[i] = std::move(item);
    }
  }
  static Node write(const std::vector<T>& value) {
    std::vector<Node> items;
    for (const T& item : value) items.push_back(Format<T>::write(item));
    return Node::make_list(items);
  }
  static Fields inside(std::vector<T>& value) {
    Fields fields;
    if constexpr (Described<T>)
      for (size_t i = 0; i < value.size(); ++i) fields.add(fmt::format("{}", i), value[i], {});
    return fields;
  }
  static Fields inside_documented(std::vector<T>&) { return fields_of_default<T>(); }
};

template <class T>
struct Format<std::map<std::string, T>> : FormatOfValue {
  static std::string type() { return "map of names to " + Format<T>::type(); }
  static void read(const Node& node, const Field& field, const Context& context, std::map<std::string, T>& value) {
    if (node.kind() != Node::Kind::map) refuse(node, type(), context);
    value.clear();
    for (const std::string& key : node.keys()) Format<T>::read(node[key], field, context, value[key]);
  }
  static Node write(const std::map<std::string, T>& value) {
    std::vector<std::pair<std::string, Node>> entries;
    for (const auto& [key, item] : value) entries.emplace_back(key, Format<T>::write(item));
    return Node::make_map(entries);
  }
};

template <class T>
class ValueOf : public Value {
 public:
  explicit ValueOf(T& value) : value_(value) {}
  void read(const Node& node, const Field& field, const Context& context) override {
    Format<T>::read(node, field, context, value_);
  }
  Node write() const override { return Format<T>::write(value_); }
  std::string type() const override { return Format<T>::type(); }
  bool is_section() const override { return Format<T>::is_section; }
  bool is_list() const override { return Format<T>::is_list; }
  Fields inside() override { return Format<T>::inside(value_); }
  Fields inside_documented() override { return Format<T>::inside_documented(value_); }

 private:
  T& value_;
};

template <class T>
void Fields::add(std::string name, T& value, Field field) {
  require(find(name) == nullptr, "config: key {} is described twice", name);
  entries_.push_back({std::move(name), std::move(field), std::make_unique<ValueOf<T>>(value)});
}

}  // namespace keel::config
