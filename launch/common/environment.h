// What a run ran on: stored with the run and in every checkpoint, so that a difference in bits can be explained.
#pragma once

#include <string>
#include <vector>

#include "framework/comm/world.h"
#include "framework/config/run_config.h"

namespace keel {

// How many ranks each host has, in the order of their first ranks; `hosts` is every rank's.
std::vector<int64_t> ranks_per_host(const std::vector<std::string>& hosts);
// JSON: version, commit, compiler, host names, ranks per host, CPU, threads, device, layout, libraries. Collective.
std::string environment_text(comm::World& world, Device device, const config::Layout& layout);
// What differs between two of them that can change the bits of a run, in lines: "threads: 8 -> 4". Hosts may have other
// names.
std::vector<std::string> environment_changes(const std::string& stored, const std::string& now);

// What must be the same on all ranks: version, commit and a checksum of the program itself.
std::string build_identity();

// Facts of this machine, for `keel doctor` too.
std::string cpu_model();
std::string cpu_features();  // of those that matter here: "avx2 fma", "avx512f avx512_bf16"
std::string mpi_version();
std::string hdf5_version();

}  // namespace keel
