// One run, one config: what ranks that were started apart (mpirun's colon, hosts with files of their own) must share.
#pragma once

#include <string>

#include "framework/comm/world.h"

namespace keel {

// Refuses ranks that see another file of this name than rank 0, whose word counts. One that sees none is fine.
// Collective.
void require_same_config(comm::World& world, const std::string& path);

}  // namespace keel
