#include "framework/lab/plan.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>

#include "framework/base/text.h"

namespace keel::lab {
namespace {

using config::Node;

// "optimizer.lr" -> "lr", or the whole key where two axes end alike.
std::string short_name(const std::vector<Axis>& axes, const std::string& key) {
  auto last = [](const std::string& dotted) { return dotted.substr(dotted.rfind('.') + 1); };
  const auto alike =
      std::count_if(axes.begin(), axes.end(), [&](const Axis& axis) { return last(axis.key) == last(key); });
  return alike > 1 ? key : last(key);
}

std::string file_name_part(std::string text) {
  for (char& letter : text)
    if (!std::isalnum(static_cast<unsigned char>(letter)) && std::string("+-._").find(letter) == std::string::npos)
      letter = '_';
  return text;
}

// Every point of the grid, the last axis fastest; one empty point without axes.
std::vector<std::vector<std::string>> grid(const std::vector<Axis>& axes) {
  std::vector<std::vector<std::string>> points = {{}};
  for (const Axis& axis : axes) {
    std::vector<std::vector<std::string>> longer;
    for (const auto& point : points)
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        longer.back().push_back(value);
      }
    points = std::move(longer);
  }
  return points;
}

Node value_of(const Node& axis_values, const std::string& text) {
  for (size_t i = 0; i < axis_values.size(); ++i)
    if (config::print_line(axis_values[i]) == text) return axis_values[i];
  return {};
}

Cell make_cell(const Node& base, const AblateConfig& config, const Plan& plan, Cell cell) {
  cell.name = cell.arm;
  cell.root = base.with_all(config.arms[cell.arm]);
  for (size_t i = 0; i < plan.axes.size(); ++i) {
    const std::string& key = plan.axes[i].key;
    cell.name += file_name_part(fmt::format("-{}{}", short_name(plan.axes, key), cell.values[i]));
    cell.root = cell.root.with(key, value_of(config.axes[key], cell.values[i]));
  }
  cell.name += fmt::format("-seed{}", cell.seed);
  cell.root =
      cell.root.with("seed", Node::make_text(std::to_string(cell.seed))).with("name", Node::make_text(cell.name));
  return cell;
}

using Leaves = std::map<std::string, std::string>;

void collect(const Node& node, const std::string& path, Leaves& leaves) {
  if (node.kind() != Node::Kind::map || node.size() == 0) {
    leaves[path] = config::print_line(node);
    return;
  }
  for (const std::string& key : node.keys()) collect(node[key], path.empty() ? key : path + "." + key, leaves);
}

Leaves leaves_of(const Node& root) {
  Leaves leaves;
  for (const std::string& key : root.keys())
    if (key != "name" && key != "seed" && key != "log" && key != "ablate") collect(root[key], key, leaves);
  return leaves;
}

// The cells of one pattern.
std::vector<size_t> matching(const Plan& plan, const std::string& pattern) {
  std::vector<size_t> found;
  const size_t dash = pattern.find('-');
  int64_t first = 0, last = 0;
  if (parse_integer(pattern.substr(0, dash), first) &&
      parse_integer(dash == std::string::npos ? pattern : pattern.substr(dash + 1), last)) {
    for (int64_t number = std::max<int64_t>(1, first); number <= std::min(last, int64_t(plan.cells.size())); ++number)
      found.push_back(size_t(number - 1));
    return found;
  }
  for (size_t i = 0; i < plan.cells.size(); ++i)
    if (fnmatch(pattern.c_str(), plan.cells[i].name.c_str(), 0) == 0) found.push_back(i);
  return found;
}

}  // namespace

const Arm& Plan::arm(const std::string& wanted) const {
  const auto found = std::find_if(arms.begin(), arms.end(), [&](const Arm& arm) { return arm.name == wanted; });
  require(found != arms.end(), "there is no arm {}", wanted);
  return *found;
}

int Plan::axis(const std::string& key) const {
  const auto found = std::find_if(axes.begin(), axes.end(), [&](const Axis& axis) { return axis.key == key; });
  return found == axes.end() ? -1 : int(found - axes.begin());
}

Plan make_plan(const Node& root, const std::string& name, const std::string& directory) {
  const AblateConfig config = read_ablate_config(root["ablate"]);
  Plan plan{.name = name, .baseline = *config.baseline, .seeds = config.seeds, .stop_lost = config.stop.lost};
  plan.arms.push_back({plan.baseline, {}});
  for (const std::string& arm : config.arms.keys())
    if (arm != plan.baseline) plan.arms.push_back({arm, {}});
  for (const std::string& key : config.axes.keys()) {
    plan.axes.push_back({key, {}});
    for (size_t i = 0; i < config.axes[key].size(); ++i)
      plan.axes.back().values.push_back(config::print_line(config.axes[key][i]));
  }
  const Node base = root.with("ablate", Node::make_null())
                        .with("log.directory", Node::make_text(directory + "/cells"))
                        .with("eval.first", Node::make_text("true"));
  std::set<std::string> names;
  for (int64_t seed : plan.seeds)
    for (const auto& point : grid(plan.axes))
      for (const Arm& arm : plan.arms) {
        plan.cells.push_back(make_cell(base, config, plan, {.arm = arm.name, .values = point, .seed = seed}));
        if (!names.insert(plan.cells.back().name).second)
          throw root["ablate"]["axes"].error("two cells would be named {}", plan.cells.back().name);
      }
  return plan;
}

std::vector<KeyDifference> differing_keys(const Node& baseline, const Node& arm) {
  const Leaves before = leaves_of(baseline), after = leaves_of(arm);
  std::vector<KeyDifference> differences;
  // A section that the other side has as a value, such as null, is one difference.
  auto value = [](const Leaves& leaves, const Node& root, const std::string& key) {
    if (const auto found = leaves.find(key); found != leaves.end()) return found->second;
    const Node section = root.find(key);
    return section.empty() ? std::string("-") : config::print_line(section);
  };
  auto within_a_value = [&](const std::string& key) {
    for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1))
      if (before.contains(key.substr(0, dot)) || after.contains(key.substr(0, dot))) return true;
    return false;
  };
  Leaves keys = before;
  keys.insert(after.begin(), after.end());
  for (const auto& [key, unused] : keys) {
    const std::string was = value(before, baseline, key), is = value(after, arm, key);
    if (was != is && !within_a_value(key)) differences.push_back({key, was, is});
  }
  return differences;
}

void add_differences(std::vector<KeyDifference>& known, const std::vector<KeyDifference>& others) {
  auto add_value = [](std::string& values, const std::string& value) {
    if ((" or " + values + " or ").find(" or " + value + " or ") == std::string::npos) values += " or " + value;
  };
  for (const KeyDifference& other : others) {
    const auto found = std::ranges::find(known, other.key, &KeyDifference::key);
    if (found == known.end()) {
      known.push_back(other);
      continue;
    }
    add_value(found->baseline, other.baseline);
    add_value(found->arm, other.arm);
  }
}

io::Json to_json(const Plan& plan) {
  io::Json json = {{"name", plan.name},         {"baseline", plan.baseline}, {"stop_lost", plan.stop_lost},
                   {"seeds", plan.seeds},       {"arms", io::Json::array()}, {"axes", io::Json::array()},
                   {"cells", io::Json::array()}};
  for (const Arm& arm : plan.arms) {
    io::Json differences = io::Json::array();
    for (const KeyDifference& d : arm.differences)
      differences.push_back({{"key", d.key}, {"baseline", d.baseline}, {"arm", d.arm}});
    json["arms"].push_back({{"name", arm.name}, {"differences", differences}});
  }
  for (const Axis& axis : plan.axes) json["axes"].push_back({{"key", axis.key}, {"values", axis.values}});
  for (const Cell& cell : plan.cells)
    json["cells"].push_back({{"name", cell.name}, {"arm", cell.arm}, {"values", cell.values}, {"seed", cell.seed}});
  return json;
}

Plan plan_from_json(const io::Json& json) {
  Plan plan{.name = json.at("name"),
            .baseline = json.at("baseline"),
            .seeds = json.at("seeds"),
            .stop_lost = json.at("stop_lost")};
  for (const io::Json& arm : json.at("arms")) {
    plan.arms.push_back({arm.at("name"), {}});
    for (const io::Json& d : arm.at("differences"))
      plan.arms.back().differences.push_back({d.at("key"), d.at("baseline"), d.at("arm")});
  }
  for (const io::Json& axis : json.at("axes")) plan.axes.push_back({axis.at("key"), axis.at("values")});
  for (const io::Json& cell : json.at("cells"))
    plan.cells.push_back({cell.at("name"), cell.at("arm"), cell.at("values"), cell.at("seed"), {}});
  return plan;
}

std::vector<size_t> chosen_cells(const Plan& plan, std::span<const std::string> patterns) {
  std::set<size_t> chosen;
  for (const std::string& pattern : patterns) {
    const std::vector<size_t> found = matching(plan, pattern);
    if (found.empty())
      throw input_error("--only {}: none of the {} cells is meant (keel ablate CONFIG --list shows them)", pattern,
                        plan.cells.size());
    chosen.insert(found.begin(), found.end());
  }
  if (patterns.empty())
    for (size_t i = 0; i < plan.cells.size(); ++i) chosen.insert(i);
  return {chosen.begin(), chosen.end()};
}

}  // namespace keel::lab
