// The report of one run: what happened, head by head and step by step.
#pragma once

#include "framework/lab/html.h"
#include "framework/lab/run_record.h"

namespace keel::lab {

Page run_report(const RunRecord& run, const std::string& config);

}  // namespace keel::lab
