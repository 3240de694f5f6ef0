#include "framework/lab/ablate_config.h"

#include <algorithm>
#include <map>
#include <set>

#include "framework/base/text.h"

namespace keel::lab {

using config::Node;

void describe(config::Fields& fields, StopConfig& c) {
  fields.add(
      "lost", c.lost,
      {.doc = "End a cell early once it is lost at two consecutive evaluations in the second half of its run; the "
              "report says so."});
}

void describe(config::Fields& fields, AblateConfig& c) {
  fields.add("arms", c.arms,
             {.doc = "What is compared: a name for each set of keys that move together, "
                     "none: {model.attention.qk_norm.kind: none, model.attention.logit_scale.kind: fixed}.",
              .required = true});
  fields.add("axes", c.axes,
             {.doc = "The grid that every arm goes through: keys with lists of values, optimizer.lr: [1e-3, 1e-2]."});
  fields.add("seeds", c.seeds,
             {.doc = "Each cell runs once per seed; cells of one seed share initial weights and sample order.",
              .range = config::at_least(0)});
  fields.add("stop", c.stop, {.doc = "When a cell ends before its last step."});
  fields.add("baseline", c.baseline,
             {.doc = "The arm that the others are compared with.", .default_text = "the first arm"});
}

namespace {

// Every leaf below a node, by its dotted key, however it is written.
void collect_leaves(const Node& node, const std::string& path, std::map<std::string, Node>& leaves) {
  if (node.kind() != Node::Kind::map || node.size() == 0) {
    leaves.emplace(path, node);
    return;
  }
  for (const std::string& key : node.keys()) collect_leaves(node[key], path.empty() ? key : path + "." + key, leaves);
}

// Whether one of two dotted keys is the other, or a section that holds it.
bool overlap(const std::string& a, const std::string& b) {
  return (a + ".").starts_with(b + ".") || (b + ".").starts_with(a + ".");
}

// Numbers by their value: 1e-3 and 0.001 are the same.
std::string value_text(const Node& value) {
  const std::string text = config::print_line(value);
  double number = 0;
  return parse_real(text, number) ? fmt::format("{}", number) : text;
}

// What the ablation itself decides for each cell.
void check_key(const Node& value, const std::string& key) {
  for (const char* own : {"ablate", "name", "seed", "log"})
    if (key == own || key.starts_with(std::string(own) + "."))
      throw value.key_error("the ablation itself sets {} for each cell{}", key,
                            key == "seed" ? ": list them in ablate.seeds" : "");
}

void check_arms(const AblateConfig& c, const Node& section) {
  if (c.arms.size() == 0) throw section["arms"].error("needs at least one arm: NAME: {{key: value}}");
  for (const std::string& name : c.arms.keys()) {
    const Node arm = c.arms[name];
    const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char letter) {
      return std::isalnum(letter) || letter == '_' || letter == '+' || letter == '.';
    });
    if (!plain || name[0] == '.')
      throw arm.key_error("an arm names folders: letters, digits, '_', '+' and '.', is {}", config::in_quotes(name));
    if (!arm.empty() && arm.kind() != Node::Kind::map)
      throw arm.error("needs keys and values, {{section.key: value}}, is {}", config::in_quotes(arm.text()));
    if (arm.empty() || arm.size() == 0) continue;
    std::map<std::string, Node> leaves;
    collect_leaves(arm, "", leaves);
    for (const auto& [key, value] : leaves) {
      check_key(value, key);
      for (const std::string& axis : c.axes.keys())
        if (overlap(key, axis)) throw value.key_error("{} is an axis as well, which would overrule the arm", axis);
    }
  }
}

void check_axes(const AblateConfig& c) {
  for (const std::string& key : c.axes.keys()) {
    const Node values = c.axes[key];
    check_key(values, key);
    if (values.kind() != Node::Kind::list || values.size() == 0)
      throw values.error("an axis needs a list of values: {}: [a, b]", key);
    std::set<std::string> seen;
    for (size_t i = 0; i < values.size(); ++i)
      if (!seen.insert(value_text(values[i])).second)
        throw values[i].error("{} is on this axis twice", config::print_line(values[i]));
  }
}

}  // namespace

AblateConfig read_ablate_config(const Node& section) {
  if (section.empty()) throw section.error("missing: keel ablate needs the section `ablate` with its arms");
  AblateConfig c;
  config::read(section, c);
  check_axes(c);
  check_arms(c, section);
  if (c.seeds.empty()) throw section["seeds"].error("needs at least one seed, is an empty list");
  if (std::set(c.seeds.begin(), c.seeds.end()).size() != c.seeds.size())
    throw section["seeds"].error("names a seed twice");
  const std::vector<std::string> arms = c.arms.keys();
  if (!c.baseline) c.baseline = arms[0];
  if (std::find(arms.begin(), arms.end(), *c.baseline) == arms.end())
    throw section["baseline"].error("there is no arm {}{}", config::in_quotes(*c.baseline),
                                    did_you_mean(*c.baseline, arms, ", "));
  return c;
}

}  // namespace keel::lab
