// From config::Node to YAML text, with yaml-cpp's emitter (it quotes what needs quoting).
#include <yaml-cpp/emitter.h>
#include <yaml-cpp/emittermanip.h>

#include <algorithm>

#include "framework/config/node_data.h"

namespace keel::config {
namespace {

using Data = Node::Data;

bool holds_plain_values(const Data& list) {
  return std::all_of(list.entries.begin(), list.entries.end(),
                     [](auto& entry) { return entry.value->entries.empty(); });
}

void emit_text(YAML::Emitter& out, const std::string& text) {
  if (text == "<<") out << YAML::DoubleQuoted;  // plain, it would be a merge key
  out << text;
}

void emit(YAML::Emitter& out, const Data& data) {
  switch (data.kind) {
    case Node::Kind::missing:
    case Node::Kind::null:
      out << YAML::Null;
      return;
    case Node::Kind::text:
      emit_text(out, data.text);
      return;
    case Node::Kind::list:
      if (holds_plain_values(data)) out << YAML::Flow;
      out << YAML::BeginSeq;
      for (const Data::Entry& entry : data.entries) emit(out, *entry.value);
      out << YAML::EndSeq;
      return;
    case Node::Kind::map:
      if (data.entries.empty()) out << YAML::Flow;
      out << YAML::BeginMap;
      for (const Data::Entry& entry : data.entries) {
        out << YAML::Key;
        emit_text(out, entry.key);
        out << YAML::Value;
        emit(out, *entry.value);
      }
      out << YAML::EndMap;
  }
}

std::string emitted(YAML::Emitter& out, const Data* data) {
  if (data == nullptr) return "null";
  out.SetNullFormat(YAML::LowerNull);
  emit(out, *data);
  require(out.good(), "config: cannot print as YAML: {}", out.GetLastError());
  return out.c_str();
}

}  // namespace

std::string print(const Node& node) {
  YAML::Emitter out;
  return emitted(out, node.data_.get()) + "\n";
}

std::string print_line(const Node& node) {
  YAML::Emitter out;
  out.SetSeqFormat(YAML::Flow);
  out.SetMapFormat(YAML::Flow);
  return emitted(out, node.data_.get());
}

}  // namespace keel::config
