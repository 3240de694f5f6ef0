// One description of a struct, for every use of it. Beside the struct, in its namespace:
//
//   struct ClipConfig { double norm = 1; Auto<int64_t> window; };
//   void describe(Fields& fields, ClipConfig& c) {
//     fields.add("norm", c.norm, {.doc = "Largest gradient norm.", .range = above(0), .on_resume = changeable});
//     fields.add("window", c.window, {.doc = "Steps looked back on.", .unit = "steps", .range = at_least(1)});
//   }
//
//   read(node, c);                          strict: unknown keys, wrong types, values out of range are errors
//   to_node(c), print(to_node(c))           the resolved config; reads back equal
//   documentation_table<ClipConfig>("clip") its rows in configs/README.md
//   compare_on_resume(stored, c)            what changed since a checkpoint, what must not
//
// Types of fields: bool, integers, double, std::string, std::chrono::seconds, enums (with `enum_names`), described
// structs, Node (handed on unread), and std::optional (null), Auto (auto), std::variant<Enum, T> (a name or a T),
// std::vector and std::map<std::string, T> of them.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "framework/config/yaml.h"

namespace keel::config {

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;

  bool contains(double value) const;
  std::string text() const;  // "> 0", "0 <= x < 1"; "" where everything is allowed
};
inline Range above(double low) {
  return {.low = low, .low_open = true};
}
inline Range at_least(double low) {
  return {.low = low};
}
inline Range between(double low, double high) {
  return {.low = low, .high = high};
}

// What happens to a key when a run goes on from a checkpoint whose config says something else, the strictest first. The
// keys of a section are at most as strict as the section.
enum class OnResume {
  fixed,       // refused
  changeable,  // the new value holds from the first step on, and the change is an event
  ignored,     // does not touch what is computed
  elsewhere,   // the part that reads the section decides, key by key
};

// What is said about a key.
struct Field {
  std::string doc = "";
  std::string unit = "";
  Range range = {};
  OnResume on_resume = OnResume::fixed;
  bool required = false;                   // must be written: there is no default
  bool shorthand = false;                  // a text in place of the whole section is this key's value
  std::string default_text = "";           // for the documentation, where the default is worked out
  std::vector<std::string> synonyms = {};  // what other programs call it; for advice
};

// A value, or `auto`: Keel chooses.
template <class T>
class Auto {
 public:
  Auto() = default;
  Auto(T value) : value_(std::move(value)), is_auto_(false) {}
  bool is_auto() const { return is_auto_; }
  const T& value() const {
    require(!is_auto_, "config: a value was asked of a key that is still auto");
    return value_;
  }
  T value_or(T other) const { return is_auto_ ? other : value_; }
  bool operator==(const Auto&) const = default;

 private:
  T value_{};
  bool is_auto_ = true;
};

// A key that exists somewhere, for "it belongs in ...".
struct KnownKey {
  std::string path;
  std::vector<std::string> names;  // the key itself, then its synonyms
};

class Fields;

// What a reader knows beyond the value at hand.
struct Context {
  const Fields* root = nullptr;  // the struct that read() was called for
  std::string root_path;
  std::span<const KnownKey> elsewhere;
  std::vector<std::string> alternatives;  // words that the value may be as well: "auto", "null"
};

// One value behind any type.
class Value {
 public:
  virtual ~Value() = default;
  virtual void read(const Node& node, const Field& field, const Context& context) = 0;
  virtual Node write() const = 0;
  virtual std::string type() const = 0;
  virtual bool is_section() const = 0;  // a struct that is always there: documented by its keys alone
  virtual bool is_list() const = 0;
  virtual Fields inside() = 0;             // the keys of a struct, the items of a list of structs, where there are any
  virtual Fields inside_documented() = 0;  // the same, of an element or of a default where there is none
};

// The keys of one struct object, in the order described. Refers to the object: never outlives it.
class Fields {
 public:
  struct Entry {
    std::string name;
    Field field;
    std::unique_ptr<Value> value;
  };

  template <class T>
  void add(std::string name, T& value, Field field);

  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  const Entry* find(std::string_view name) const;
  const Entry* shorthand() const;
  void keep(std::shared_ptr<void> owner) { owner_ = std::move(owner); }

  void read(const Node& node, const Context& context) const;
  Node write() const;

 private:
  std::vector<Entry> entries_;
  std::shared_ptr<void> owner_;
};

template <class T>
concept Described = requires(Fields& fields, T& value) {
  describe(fields, value);
};

template <class T>
Fields fields_of(T& value) {
  Fields fields;
  describe(fields, value);
  return fields;
}

// Every key below `prefix`, sections included.
std::vector<KnownKey> known_keys(const Fields& fields, const std::string& prefix);
template <Described T>
std::vector<KnownKey> known_keys(const std::string& prefix) {
  T defaults{};
  return known_keys(fields_of(defaults), prefix);
}

// Reads a section into `target`. Keys that are not there keep what `target` holds: fill in a preset first, and a key in
// the file wins. `elsewhere`: keys of other parts, so that a misplaced key is told where it belongs.
template <Described T>
void read(const Node& section, T& target, std::span<const KnownKey> elsewhere = {}) {
  Fields fields = fields_of(target);
  fields.read(section, {.root = &fields, .root_path = section.path(), .elsewhere = elsewhere, .alternatives = {}});
}

// The struct as a tree, every key included: print(to_node(c)) is the resolved config.
template <Described T>
Node to_node(const T& value) {
  T copy = value;
  return fields_of(copy).write();
}

// One key that differs between a stored config and the one at hand.
struct Difference {
  std::string key, stored, now;
};

// The changeable keys that differ; those ignored are left out. Throws where a fixed key differs, with key, stored and
// new value; `section` (where `now` was read from) gives the location.
std::vector<Difference> compare_on_resume(const Fields& stored, const Fields& now, const Node& section);
template <Described T>
std::vector<Difference> compare_on_resume(const T& stored, const T& now, const Node& section = {}) {
  T stored_copy = stored, now_copy = now;
  return compare_on_resume(fields_of(stored_copy), fields_of(now_copy), section);
}

// All keys that differ, whatever a resume makes of them.
std::vector<Difference> differences(const Fields& before, const Fields& after);
template <Described T>
std::vector<Difference> differences(const T& before, const T& after) {
  T before_copy = before, after_copy = after;
  return differences(fields_of(before_copy), fields_of(after_copy));
}

// Markdown: | key | type | unit | default | range | on resume | meaning |, a row per key, default values from T{}.
std::string documentation_table(const Fields& fields, const std::string& prefix);
template <Described T>
std::string documentation_table(const std::string& prefix = "") {
  T defaults{};
  return documentation_table(fields_of(defaults), prefix);
}

// `document` with what lies between "<!-- begin NAME -->" and "<!-- end NAME -->" replaced by `table`.
std::string with_table(const std::string& document, const std::string& name, const std::string& table);

}  // namespace keel::config

#include "framework/config/format.h"  // how each type of field is read and written; needs all of the above
