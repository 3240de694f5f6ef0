// The device that a run's config asks for.
#pragma once

#include "framework/comm/world.h"
#include "framework/config/run_config.h"

namespace keel {

// device: cuda takes this rank's GPU, an input error where it has none to itself; auto takes it where every rank has
// one. From then on world.all() carries its tensors too, so this comes before anything is split from it. Collective.
Device choose_device(const config::RunConfig& run, comm::World& world);

}  // namespace keel
