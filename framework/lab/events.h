// What of a run's events a report shows.
#pragma once

#include "framework/lab/run_record.h"

namespace keel::lab {

// At most `most` of them in their order: the most severe, and of equally severe ones the last. Bookkeeping (saves,
// notes on memory, keys and spike scores) is left out.
std::vector<const io::Json*> shown_events(const RunRecord& run, size_t most);

}  // namespace keel::lab
