// Which checkpoint to go on from: rank 0 decides by step number, and every rank confirms that it sees the same file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framework/comm/communicator.h"

namespace keel::checkpoints {

// Complete files of a directory, oldest step first; empty where the directory is absent. Files still being written have
// other names.
std::vector<std::string> complete_files(const std::string& directory);
// Deletes what a killed save left behind. For one rank.
void remove_leftovers(const std::string& directory);

// The newest file that is whole (its user block verifies); older ones are tried with a warning. Collective: the same
// path on all ranks, or none.
std::optional<std::string> find_latest(comm::Communicator& world, const std::string& directory);

// Every rank opens `path` and compares size and header with rank 0's. Throws on all ranks, naming the first rank that
// cannot see it. Collective.
void confirm_on_all_ranks(comm::Communicator& world, const std::string& path);

}  // namespace keel::checkpoints
