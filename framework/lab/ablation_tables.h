// The tables of an ablation's report, each with its heading.
#pragma once

#include "framework/lab/comparison.h"
#include "framework/lab/html.h"

namespace keel::lab {

void add_arms(Page& page, const Ablation& ablation);
void add_overview(Page& page, const Comparison& comparison);
void add_stream(Page& page, const Comparison& comparison);
void add_lost(Page& page, const Ablation& ablation, const Comparison& comparison);
void add_differences(Page& page, const Ablation& ablation, const Comparison& comparison);
void add_spikes(Page& page, const Comparison& comparison);
void add_costs(Page& page, const Comparison& comparison);
void add_troubles(Page& page, const Ablation& ablation);

}  // namespace keel::lab
