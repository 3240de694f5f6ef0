// The `ablate:` section of a config: a grid of runs that differ in chosen keys. Meaning, range and default of every
// key: ablate_config.cpp and configs/README.md.
#pragma once

#include "framework/config/fields.h"

namespace keel::lab {

struct StopConfig {
  bool lost = false;
};

struct AblateConfig {
  config::Node arms;  // name -> keys and their values
  config::Node axes;  // key -> list of values
  std::vector<int64_t> seeds = {1};
  StopConfig stop;
  std::optional<std::string> baseline;  // read_ablate_config fills it in
};

void describe(config::Fields& fields, StopConfig& c);
void describe(config::Fields& fields, AblateConfig& c);

// The strict reading of the section. Whether the keys of arms and axes exist is found out when a cell is read.
AblateConfig read_ablate_config(const config::Node& section);

}  // namespace keel::lab
