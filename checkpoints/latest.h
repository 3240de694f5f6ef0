// Which checkpoint to go on from: rank 0 decides by step number, and every rank confirms that it sees the same file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoints/io_limit.h"
#include "framework/comm/communicator.h"
#include "framework/config/run_config.h"

namespace keel::checkpoints {

// Complete files of a directory, oldest step first; empty where the directory is absent. Files still being written have
// other names.
std::vector<std::string> complete_files(const std::string& directory);
// Whether a path is a file of that directory, links resolved.
bool lies_in(const std::string& path, const std::string& directory);
// Deletes what a killed save left behind, parts that nothing links among it. For one rank.
void remove_leftovers(const std::string& directory);

// Deletes all but the newest `keep` of the complete files up to `step`, and those of every `keep_every`-th step; later
// ones are another run's. That of `whole_step` stays, too: the newest that holds more than weights. For one rank.
void remove_old(const std::string& directory, int64_t step, const config::CheckpointConfig& options,
                int64_t whole_step = -1);
// Going on from `step` leaves the files after it behind: they get names that nothing goes on from, so that "auto" does
// not jump back to them. For one rank.
void set_aside_after(const std::string& directory, int64_t step);

// The newest file of which every byte is as it was written (the ranks divide the reading), and that holds more than
// weights, if any does; older ones are tried with a warning. An input error where there are files and none is whole, or
// where a rank does not see the same file. Collective: the same path on all ranks, or none where there are no files.
// The limit is of one tensor's reading.
std::optional<std::string> find_latest(comm::Communicator& world, io::IoThread& io, const std::string& directory,
                                       double limit_seconds = kIoLimit_seconds);
// The same among `files`, the best one last, as rank 0 has them.
std::optional<std::string> find_whole(comm::Communicator& world, io::IoThread& io,
                                      const std::vector<std::string>& files, double limit_seconds = kIoLimit_seconds);

// Every rank opens `path` and compares its header, and so its content, with rank 0's. Throws on all ranks, naming the
// first rank that cannot see it. Collective.
void confirm_on_all_ranks(comm::Communicator& world, const std::string& path);

}  // namespace keel::checkpoints
