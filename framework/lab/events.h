// What of a run's events reports and screens show.
#pragma once

#include <map>
#include <string>

#include "framework/lab/run_record.h"

namespace keel::lab {

// How much each kind of event that the program writes says about a run in trouble. 0: bookkeeping; 1: a start; from 2
// on: trouble, and what was done.
const std::map<std::string, int>& severities();
// 2 for a kind that another version wrote.
int severity(const io::Json& event);

// At most `most` of them in their order: the most severe, and of equally severe ones the last. Bookkeeping (saves,
// notes on memory, keys, the machine and spike scores) is left out.
std::vector<const io::Json*> shown_events(const RunRecord& run, size_t most);

}  // namespace keel::lab
