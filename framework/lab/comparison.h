// The cells of an ablation arranged for comparing: lines of arms over one axis, with a value per seed.
#pragma once

#include <functional>

#include "framework/lab/ablation.h"
#include "framework/lab/statistics.h"

namespace keel::lab {

// An arm at one point of all axes but the one on the x axis.
struct Line {
  std::string label;  // "rms", or "rms, sequence_length 256"
  std::string arm;
  size_t baseline = 0;                                  // the baseline's line at the same point
  std::vector<std::vector<const CellResult*>> results;  // [x][seed]; null where a cell has not ended
  std::vector<std::vector<size_t>> cells;               // [x][seed]: index into the plan
};

struct Comparison {
  std::string x_key;              // "optimizer.lr" where there is such an axis, else the first; "" without axes
  std::vector<std::string> x;     // its values, numbers ascending; one empty text without axes
  std::vector<double> x_numbers;  // empty where they are not all numbers
  bool has_sensitivity = false;   // x is one log-spaced grid of learning rates (QKNORM.md section 6)
  std::vector<Line> lines;        // the baseline's before others at the same point
};

// `ablation` outlives it.
Comparison compare(const Ablation& ablation);

// One number of each cell of a line that has ended, at one x or at all.
std::vector<double> values_at(const Line& line, size_t x, double (*value)(const CellResult&));
std::vector<double> values_of(const Line& line, double (*value)(const CellResult&));
// Whether a cell at this x is lost.
bool any_lost(const Line& line, size_t x);

// The held-out loss that counts: that before the first step where it is not finite.
double counted_loss(const CellResult& result);

// Per seed; seeds that lack a cell are left out. `seeds`, if wanted, gets the places of those that are there.
std::vector<double> sensitivities(const Line& line, std::vector<size_t>* seeds = nullptr);
std::vector<double> best_losses(const Line& line, std::vector<size_t>* seeds = nullptr);
std::vector<double> losses_at(const Line& line, size_t x, std::vector<size_t>* seeds = nullptr);

// `line` minus `baseline` of what `values` says of each, over the seeds that both have.
Estimate difference(const Line& line, const Line& baseline,
                    const std::function<std::vector<double>(const Line&, std::vector<size_t>*)>& values);

// Of each cell against the baseline's of the same x and seed: what else a machine did, and how much work x is, then say
// little. By their quick steps where both cells know them, else by their median ones.
std::vector<double> step_time_ratios(const Line& line, const Line& baseline);

// Their median, the range where they differ, and that the machine was not quiet where that is wide.
std::string text_of_ratios(const std::vector<double>& ratios);

// Whether the same cells of both have ended, one at least, and all with the same losses and logits, bit for bit.
bool same_results(const Line& a, const Line& b);

// "2.3456 ± 0.0123", or without an interval below 3 values.
std::string text_of(const Estimate& estimate, const char* number = "{:.4f}");

}  // namespace keel::lab
